#include "weft/memory/shared_block.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <new>
#include <string>
#include <utility>

#include <absl/strings/str_join.h>

#include "weft/core/hash.h"
#include "weft/core/status.h"

namespace weft {
namespace {

// In front of every block, on a cache line of its own. See Note [Letting go].
using HolderCount = std::atomic<int32_t>;
constexpr size_t kHeaderBytes = 64;

HolderCount& HoldersOf(std::byte* data) { return *reinterpret_cast<HolderCount*>(data - kHeaderBytes); }

// A block as a rank names it to the others: who holds it, and how long it is; or where it lies.
struct Announcement {
  uint64_t holders;  // Hash of their ranks.
  uint64_t value;

  friend bool operator==(const Announcement&, const Announcement&) = default;
};
using Announcements = std::vector<Announcement>;

uint64_t HashOf(const std::vector<int>& holders) {
  return Hash64(holders.data(), holders.size() * sizeof(int));
}

absl::StatusOr<std::vector<Announcements>> Exchange(Bootstrap& bootstrap, const Announcements& own,
                                                    absl::Duration timeout) {
  const std::string_view blob(reinterpret_cast<const char*>(own.data()), own.size() * sizeof(Announcement));
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> blobs, bootstrap.AllGatherBlob(blob, timeout));
  std::vector<Announcements> all;
  for (const std::string& theirs : blobs) {
    if (theirs.size() % sizeof(Announcement) != 0) {
      return absl::InternalError(
          "a rank announced no blocks: ranks are not at the same place of the program");
    }
    all.emplace_back(theirs.size() / sizeof(Announcement));
    std::memcpy(all.back().data(), theirs.data(), theirs.size());
  }
  return all;
}

// What of a rank's announcements is about blocks of these holders, in its order.
std::vector<uint64_t> ValuesOf(const Announcements& announcements, uint64_t holders) {
  std::vector<uint64_t> values;
  for (const Announcement& block : announcements) {
    if (block.holders == holders) values.push_back(block.value);
  }
  return values;
}

absl::Status CheckHolders(const Bootstrap& bootstrap, const std::vector<int>& holders) {
  const NodeMap& nodes = bootstrap.node_map();
  const auto elsewhere = [&](int rank) {
    return rank < 0 || rank >= nodes.size() || !nodes.SameNode(rank, bootstrap.rank());
  };
  const bool ascending =
      std::adjacent_find(holders.begin(), holders.end(), std::greater_equal<>()) == holders.end();
  const bool holds = std::find(holders.begin(), holders.end(), bootstrap.rank()) != holders.end();
  if (ascending && holds && std::none_of(holders.begin(), holders.end(), elsewhere)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("holders of a shared block are ", absl::StrJoin(holders, ", "),
                   ": they must be ranks of the node of rank ", bootstrap.rank(),
                   ", in ascending order, with that rank among them"));
}

// Whether the holders of every block of this rank list the same ones of theirs.
absl::Status CheckListedAlike(const Bootstrap& bootstrap, absl::Span<const SharedBlockRequest> requests,
                              const std::vector<Announcements>& listed) {
  for (const SharedBlockRequest& request : requests) {
    WEFT_RETURN_IF_ERROR(CheckHolders(bootstrap, request.holders));
    const uint64_t hash = HashOf(request.holders);
    const auto own = ValuesOf(listed[static_cast<size_t>(bootstrap.rank())], hash);
    for (const int holder : request.holders) {
      const auto theirs = ValuesOf(listed[static_cast<size_t>(holder)], hash);
      if (theirs == own) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "of the blocks that ranks ", absl::StrJoin(request.holders, ", "), " share, rank ",
          bootstrap.rank(), " lists sizes ", absl::StrJoin(own, ", "), ", rank ", holder, " lists ",
          absl::StrJoin(theirs, ", "), ": they must list the same ones in the same order"));
    }
  }
  return absl::OkStatus();
}

// The maker of each block: holders see the same blocks of the same holders, and so choose alike.
std::vector<int> ChooseMakers(absl::Span<const SharedBlockRequest> requests) {
  std::map<std::vector<int>, std::map<int, uint64_t>> filled_by;  // For each set of holders.
  std::vector<int> makers;
  for (const SharedBlockRequest& request : requests) {
    std::map<int, uint64_t>& filled = filled_by[request.holders];
    const int maker = *std::min_element(request.holders.begin(), request.holders.end(),
                                        [&](int a, int b) { return filled[a] < filled[b]; });
    filled[maker] += request.bytes;
    makers.push_back(maker);
  }
  return makers;
}

absl::StatusOr<std::byte*> MakeBlock(NodeHeap& heap, const SharedBlockRequest& request) {
  WEFT_ASSIGN_OR_RETURN(std::byte * block, heap.Allocate(kHeaderBytes + request.bytes));
  auto* holders = new (block) HolderCount(static_cast<int32_t>(request.holders.size()));
  heap.FreeWithLastHolder(block, *holders);
  std::memset(block + kHeaderBytes, 0, request.bytes);
  return block + kHeaderBytes;
}

// Makes those of the blocks that are this rank's to make; null where they are not. None is left on an error.
absl::Status MakeBlocks(Bootstrap& bootstrap, NodeHeap& heap, absl::Span<const SharedBlockRequest> requests,
                        const std::vector<int>& makers, absl::Duration timeout,
                        std::vector<std::byte*>& blocks) {
  const auto make_own = [&]() -> absl::Status {
    for (size_t i = 0; i < requests.size(); ++i) {
      if (makers[i] != bootstrap.rank()) continue;
      WEFT_ASSIGN_OR_RETURN(blocks[i], MakeBlock(heap, requests[i]));
    }
    return absl::OkStatus();
  };
  absl::Status made = AgreeOnStatus(bootstrap, make_own(), timeout);
  if (made.ok()) return made;
  for (std::byte* block : blocks) {
    if (block != nullptr) HoldersOf(block).store(0, std::memory_order_release);  // Nobody knows of it.
  }
  return made;
}

}  // namespace

SharedBlock::SharedBlock(SharedBlock&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

SharedBlock& SharedBlock::operator=(SharedBlock&& other) noexcept {
  if (this == &other) return *this;
  const SharedBlock gone(std::move(*this));
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

// Acquire and release: who takes the block back comes after all that any holder did with it.
SharedBlock::~SharedBlock() {
  if (data_ != nullptr) HoldersOf(data_).fetch_sub(1, std::memory_order_acq_rel);
}

absl::StatusOr<std::vector<SharedBlock>> ShareBlocks(Bootstrap& bootstrap, NodeHeap& heap,
                                                     absl::Span<const SharedBlockRequest> requests,
                                                     absl::Duration timeout) {
  Announcements sizes;
  for (const SharedBlockRequest& request : requests)
    sizes.push_back({HashOf(request.holders), request.bytes});
  WEFT_ASSIGN_OR_RETURN(const std::vector<Announcements> listed, Exchange(bootstrap, sizes, timeout));
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, CheckListedAlike(bootstrap, requests, listed), timeout));
  const std::vector<int> makers = ChooseMakers(requests);
  std::vector<std::byte*> blocks(requests.size(), nullptr);
  WEFT_RETURN_IF_ERROR(MakeBlocks(bootstrap, heap, requests, makers, timeout, blocks));

  Announcements offsets;
  for (size_t i = 0; i < requests.size(); ++i) {
    const uint64_t offset = blocks[i] == nullptr ? 0 : heap.AddressOf(blocks[i])->offset;
    offsets.push_back({HashOf(requests[i].holders), offset});
  }
  WEFT_ASSIGN_OR_RETURN(const std::vector<Announcements> made, Exchange(bootstrap, offsets, timeout));
  std::map<std::vector<int>, size_t> places;  // Of the next block of the same holders.
  std::vector<SharedBlock> shared;
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto theirs = ValuesOf(made[static_cast<size_t>(makers[i])], HashOf(requests[i].holders));
    std::byte* data = heap.Resolve({makers[i], theirs[places[requests[i].holders]++]});
    shared.push_back(SharedBlock(data, requests[i].bytes));
  }
  return shared;
}

}  // namespace weft
