// Heap in node-shared memory: one segment per rank, readable and writable by every rank of the node.
//
// Each rank allocates in its own segment, without communication. Peers address a block as (rank, offset), so
// offsets may differ between ranks. Blocks are 64-byte aligned. Allocate commits a block's pages, so that a
// lack of memory is a Status and not a SIGBUS.
//
// Thread safety: all members may be called from any thread of the rank.
// Collective: Create (all ranks of the bootstrap).
// Lifetime: the heap must outlive its blocks; the bootstrap must outlive the heap.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include <absl/status/statusor.h>
#include <absl/time/time.h>
#include <absl/types/span.h>

#include "weft/mesh/bootstrap.h"

namespace weft {

// Location in node memory, with the same meaning on every rank of the node.
struct NodeAddress {
  int rank;         // Owner of the segment (a bootstrap rank). Ranks of a view: see MapEndToEnd.
  uint64_t offset;  // Bytes from the segment's base.

  friend bool operator==(const NodeAddress&, const NodeAddress&) = default;
};

class NodeHeap {
 public:
  struct Options {
    // Segment size of each rank. 0: nine tenths of the node's free memory and of the files that may hold it
    // (ulimit -f), but at most half of the addresses that a process may still map (ulimit -v), divided by the
    // node's ranks. Otherwise this size must be free. If ranks request different sizes, all use the smallest.
    size_t segment_bytes = 0;
    // Unset: the environment's WEFT_TIMEOUT_S (DefaultTimeout).
    std::optional<absl::Duration> timeout = std::nullopt;
    // For tests: pools fill released blocks with one bits, which are NaN in every floating-point dtype. A
    // read after release then shows in the results.
    bool poison_released = false;
  };
  // All ranks use the same segment size, the smallest that any rank proposes.
  // Collective: all ranks of `bootstrap`.
  // Lifetime: `bootstrap` must outlive the heap.
  // Errors, the same on all ranks: kInvalidArgument (WEFT_TIMEOUT_S of some rank is invalid),
  //   kDeadlineExceeded (names the missing ranks), and those of Bootstrap::ReserveNodeMemory.
  static absl::StatusOr<std::unique_ptr<NodeHeap>> Create(Bootstrap& bootstrap, const Options& options);
  ~NodeHeap();

  // Returns a block of at least `bytes`, 64-byte aligned, with undefined contents. Before it fails, it runs
  // every reclaimer and tries again.
  // Errors: kResourceExhausted (gives the requested bytes, the free bytes and the largest free range).
  absl::StatusOr<std::byte*> Allocate(size_t bytes);
  // Frees a block of this rank. Its pages stay committed for later blocks. Null is ignored.
  void Free(std::byte* block);
  // Frees `block` at the first Allocate or allocated_bytes call that finds `holders` at 0. Any rank of the
  // node may decrement `holders`. The check is an acquire load: with release decrements, the holders'
  // accesses to the block happen before its memory is reused.
  // REQUIRES: `holders` lies inside `block`.
  void DeferFree(std::byte* block, const std::atomic<int32_t>& holders);

  // Adds a function that frees idle blocks of this heap. Allocate runs it on the calling thread. Returns a
  // number for RemoveReclaimer, which waits while the function runs.
  // REQUIRES: the function neither allocates nor adds or removes reclaimers; the caller of Allocate holds no
  // lock that the function takes.
  using Reclaimer = std::function<void()>;
  int AddReclaimer(Reclaimer reclaimer);
  void RemoveReclaimer(int number);

  // Address of `pointer`, if the `bytes` from there on lie in the segment of one rank of this node, or in one
  // view that this rank has mapped; nullopt otherwise. REQUIRES: bytes >= 1.
  std::optional<NodeAddress> AddressOf(const void* pointer, size_t bytes = 1) const;
  // Pointer to an address.
  // REQUIRES: the address is in the segment of a rank of this node, or in a view that this rank has mapped.
  std::byte* Resolve(NodeAddress address) const;
  // True if Resolve may be called for all of these bytes.
  bool Holds(NodeAddress address, size_t bytes) const;

  // Maps ranges of this node's segments once more, end to end, until the heap is destroyed. Pointers into the
  // view have addresses of their own, whose rank is the number of ranks plus `number`. Peers that map the
  // same ranges under the same number can resolve them. `ranges` are whole pages. For ShareBlocks.
  // REQUIRES: segments are mapped shared, as those of several ranks are; TakeViewNumbers has taken `number`.
  // Errors: kResourceExhausted (the kernel refused).
  struct Range {
    NodeAddress address;
    size_t bytes;
  };
  absl::StatusOr<std::byte*> MapEndToEnd(int number, absl::Span<const Range> ranges);
  // The lowest number above those of all views so far. Ranks may differ after one has missed a deadline.
  int next_view_number() const;
  // Takes `count` numbers for views. REQUIRES: `first` is the same on all ranks, and at least
  // next_view_number() of each.
  void TakeViewNumbers(int first, int count);

  size_t segment_bytes() const;
  size_t allocated_bytes() const;        // Bytes of all blocks that are allocated now.
  size_t peak_bytes() const;             // Largest allocated_bytes() so far.
  size_t total_allocated_bytes() const;  // Bytes of all blocks ever allocated; never decreases.
  bool shared_between_processes() const;
  bool poisons_released() const;

 private:
  class Impl;
  explicit NodeHeap(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft
