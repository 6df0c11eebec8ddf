// Reference-counted block of node memory that several ranks of a node hold.
//
// A block lies in the segment of one holder, its owner. If a segment has no room for its blocks, they are
// *striped*: every holder owns an equal number of pages of each, which all ranks of the node map end to end.
//
// Note [Releasing shared blocks]
// Problem: a rank may be done with a block, or have failed, while other holders still access the block.
// Rule: a count of holders lies in node memory, in front of the block or stripe. A holder decrements it when
// it is done, and waits for no other rank. The owner frees the block at its next allocation after the count
// has reached 0.
// Why it suffices: the memory stays allocated while any holder may still access it. A rank that fails and
// never decrements the count leaks the block, and frees nothing too early.
//
// Thread safety: a move-only value. Ranks must synchronize their accesses to the block's bytes themselves.
// Collective: ShareBlocks (all ranks of the bootstrap).
// Lifetime: the heap must outlive the block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/time/time.h>
#include <absl/types/span.h>

#include "weft/memory/node_heap.h"
#include "weft/mesh/bootstrap.h"

namespace weft {

struct SharedBlockRequest {
  std::vector<int> holders;  // Bootstrap ranks of one node, ascending, including the caller.
  size_t bytes = 0;
};

class SharedBlock {
 public:
  SharedBlock() = default;
  SharedBlock(SharedBlock&& other) noexcept;
  SharedBlock& operator=(SharedBlock&& other) noexcept;
  ~SharedBlock();

  // 64-byte aligned; zero when ShareBlocks returns.
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  SharedBlock(std::byte* data, size_t bytes, std::vector<std::byte*> stripes)
      : data_(data), bytes_(bytes), stripes_(std::move(stripes)) {}
  void Release();
  friend absl::StatusOr<std::vector<SharedBlock>> ShareBlocks(Bootstrap& bootstrap, NodeHeap& heap,
                                                              absl::Span<const SharedBlockRequest> requests,
                                                              absl::Duration timeout);

  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  // Addresses of the stripes in their owners' segments. One for a block that is not striped.
  std::vector<std::byte*> stripes_;
};

// Allocates shared blocks and returns this rank's, in the order of its requests. Every rank requests all
// blocks that it holds. The blocks of one set of holders are distributed over the holders' segments as evenly
// as possible; where a segment has no room, all blocks that are large enough are striped.
// REQUIRES: the holders of a set request the same blocks in the same order.
// Errors: all ranks return the same error. kInvalidArgument (holders are not ranks of one node; holders
// request different blocks), kResourceExhausted (a segment has no room for its stripes), kDeadlineExceeded
// (names the missing ranks).
absl::StatusOr<std::vector<SharedBlock>> ShareBlocks(Bootstrap& bootstrap, NodeHeap& heap,
                                                     absl::Span<const SharedBlockRequest> requests,
                                                     absl::Duration timeout);

}  // namespace weft
