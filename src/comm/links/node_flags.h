// Flags of ranks in node memory, as SharedMemoryLink lays them out.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

#include "src/comm/base/cache_line.h"
#include "src/comm/base/descriptor.h"
#include "src/comm/links/node_link.h"

namespace weft::shared_memory {

struct Slot {
  alignas(kLineBytes) std::atomic<uint64_t> published{0};  // Sequence of the descriptor in this slot.
  Descriptor descriptor;
  alignas(kLineBytes) std::atomic<int64_t> claimed{0};  // Claimed pieces. May exceed their number.
  std::atomic<int64_t> finished{0};                     // Pieces that FinishPiece has counted.
};

// See Note [Arrivals]. The ranks that have arrived and the sum of their hashes are one number: a second
// addition would often have to wait for the cache line once more.
struct Arrivals {
  static constexpr int kCountBits = 16;
  static constexpr uint64_t kMaxRanks = (uint64_t{1} << kCountBits) - 1;

  // Their number, and above it the sum of their hashes.
  alignas(kLineBytes) std::atomic<uint64_t> arrived{0};
  std::atomic<int64_t> word{0};
  std::atomic<int32_t> consumed{0};

  // A rank adds this number to `arrived`. The upper 16 bits of its hash do not count.
  static constexpr uint64_t Arrival(uint64_t hash) { return (hash << kCountBits) + 1; }
  static NodeLink::Arrived Compare(uint64_t arrived, int ranks, uint64_t hash) {
    const auto count = static_cast<uint64_t>(ranks);
    const uint64_t counted = arrived & kMaxRanks;
    if (counted < count) return NodeLink::Arrived::kSome;
    if (counted > count) return NodeLink::Arrived::kTooMany;
    return arrived == count * Arrival(hash) ? NodeLink::Arrived::kAllEqual : NodeLink::Arrived::kUnequal;
  }
  void Clear() {
    arrived.store(0, std::memory_order_relaxed);
    consumed.store(0, std::memory_order_relaxed);
    word.store(0, std::memory_order_relaxed);
  }
};

// Flags of one lane. An array [kSlots, counter_count] of atomic counters follows.
struct LaneFlags {
  explicit LaneFlags(int64_t counters) : counter_count(counters) {
    for (size_t i = 0; i < NodeLink::kSlots * static_cast<size_t>(counters); ++i)
      new (FirstCounter() + i) std::atomic<int64_t>(0);
  }
  static size_t Bytes(int counters) {
    return sizeof(LaneFlags) +
           NodeLink::kSlots * static_cast<size_t>(counters) * sizeof(std::atomic<int64_t>);
  }
  std::atomic<int64_t>& Counter(uint64_t sequence, int index) {
    return FirstCounter()[(sequence % NodeLink::kSlots) * static_cast<uint64_t>(counter_count) +
                          static_cast<uint64_t>(index)];
  }
  Slot& At(uint64_t sequence) { return slots[sequence % NodeLink::kSlots]; }
  Arrivals& ArrivalsOf(uint64_t sequence) { return arrivals[sequence % NodeLink::kSlots]; }

  alignas(kLineBytes) std::atomic<uint64_t> consumed{0};
  alignas(kLineBytes) const int64_t counter_count;
  std::array<Slot, NodeLink::kSlots> slots;
  // Used only in the flags of the node leader.
  std::array<Arrivals, NodeLink::kSlots> arrivals;
  alignas(kLineBytes) std::atomic<uint64_t> consumed_by_all{0};

 private:
  std::atomic<int64_t>* FirstCounter() { return reinterpret_cast<std::atomic<int64_t>*>(this + 1); }
};

// Memory for flags is taken as lanes are opened.
inline constexpr int kBlockLanes = 1024;
// By lane of the block: 1 + the offset of its LaneFlags in the owner's segment. 0 until the lane is open.
using LaneBlock = std::array<std::atomic<uint64_t>, kBlockLanes>;

struct FailureSlot {
  static constexpr size_t kTextBytes = 480;
  alignas(kLineBytes) std::atomic<uint32_t> code{0};  // absl::StatusCode. 0: no failure.
  int32_t rank = 0;                                   // The rank that failed first.
  std::array<char, kTextBytes> text{};
};

// Flags that one rank writes and its local peers read. Peers also write the doorbell and the counters of
// pieces.
struct RankFlags {
  alignas(kLineBytes) std::atomic<uint32_t> doorbell{0};
  alignas(kLineBytes) std::atomic<uint32_t> sleepers{0};
  alignas(kLineBytes) std::atomic<uint64_t> heartbeats{0};
  // Messages that peers have written to their mailboxes for this rank.
  alignas(kLineBytes) std::atomic<uint64_t> mail{0};
  // Failure notices of the node's ranks. Used only in the flags of the node's first rank.
  alignas(kLineBytes) std::atomic<int32_t> failures{0};
  // Offset of the mailboxes that this rank writes, by the reader's position in the node.
  uint64_t mailboxes = 0;
  std::atomic<bool> is_closed{false};  // The link of this rank was destroyed.
  FailureSlot failure;
  // By block of lanes: 1 + the offset of its LaneBlock in the owner's segment. 0 until a lane of it is open.
  alignas(kLineBytes) std::array<std::atomic<uint64_t>, NodeLink::kMaxLanes / kBlockLanes> blocks{};
};

}  // namespace weft::shared_memory
