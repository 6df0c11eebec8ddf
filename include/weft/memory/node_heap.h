// The symmetric heap: one reservation of node-shared memory, from which each rank allocates locally in its
// own segment.
//
// Allocation is local and needs no collective: what a peer must know is (rank, offset), so offsets need not
// agree. Blocks are 64-byte aligned, and their pages are committed when they are allocated, so that
// exhaustion is a Status.
//
// Thread safety: all members may be called from any thread of the rank.
// Collective: Create (all ranks of the bootstrap).
// Lifetime: the heap must outlive its blocks; the bootstrap must outlive the heap.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include <absl/status/statusor.h>

#include "weft/mesh/bootstrap.h"

namespace weft {

// A place in node memory that every rank of the node can name.
struct NodeAddress {
  int rank;         // Whose segment (a bootstrap rank).
  uint64_t offset;  // From the segment's base.

  friend bool operator==(const NodeAddress&, const NodeAddress&) = default;
};

class NodeHeap {
 public:
  struct Options {
    // Of each rank. 0: what is free on the node, less a reserve, divided by its ranks; else that size (if
    // ranks ask for different ones, the smallest), which must be free.
    size_t segment_bytes = 0;
    absl::Duration timeout = absl::Seconds(600);
    // Fills what pools take back with ones, which are NaN in every floating-point dtype: whoever reads it
    // too late gets caught. For tests.
    bool poison_released = false;
  };
  // Ranks agree on the smallest size that all nodes can give. Errors: kResourceExhausted (what was asked,
  // what is free).
  static absl::StatusOr<std::unique_ptr<NodeHeap>> Create(Bootstrap& bootstrap, const Options& options);
  ~NodeHeap();

  // At least 64 bytes, 64-byte aligned; contents undefined. Errors: kResourceExhausted (asked, free, largest
  // hole).
  absl::StatusOr<std::byte*> Allocate(size_t bytes);
  // Null is ignored. Pages stay committed, for the next block.
  void Free(std::byte* block);
  // Gives `block` back once `holders` is 0, which lies in it, and which any rank of the node may lower. This
  // is looked at when something is allocated. What ranks wrote before they lowered it has then happened.
  void FreeWithLastHolder(std::byte* block, const std::atomic<int32_t>& holders);

  // Where `pointer` lies, in the segment of whichever rank of this node; nothing for any other memory.
  std::optional<NodeAddress> AddressOf(const void* pointer) const;
  // The memory of a rank of this node at an address.
  std::byte* Resolve(NodeAddress address) const;

  size_t segment_bytes() const;
  size_t allocated_bytes() const;
  size_t peak_bytes() const;
  size_t given_bytes() const;  // Of all blocks ever allocated.
  bool shared_between_processes() const;
  bool poisons_released() const;

 private:
  class Impl;
  explicit NodeHeap(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft
