// A block of node memory that several ranks of a node hold together: it lies in one rank's segment, and goes
// back there when the last of its holders has let go.
//
// Note [Letting go]
// Holders are counted in node memory, in front of the block. A holder lets go by itself, whenever it is done
// with the block, and waits for nobody: the memory stays while any other rank may still read or write it. The
// rank that made the block takes it back when it next allocates something.
//
// Thread safety: a move-only value. What ranks write to the block they must order themselves.
// Collective: ShareBlocks, by all ranks of the bootstrap.
// Lifetime: the heap must outlive the block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/time/time.h>
#include <absl/types/span.h>

#include "weft/memory/node_heap.h"
#include "weft/mesh/bootstrap.h"

namespace weft {

struct SharedBlockRequest {
  std::vector<int> holders;  // Bootstrap ranks of one node, each once, the caller among them; ascending.
  size_t bytes = 0;
};

class SharedBlock {
 public:
  SharedBlock() = default;
  SharedBlock(SharedBlock&& other) noexcept;
  SharedBlock& operator=(SharedBlock&& other) noexcept;
  ~SharedBlock();

  // 64-byte aligned; zero at first.
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  SharedBlock(std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {}
  friend absl::StatusOr<std::vector<SharedBlock>> ShareBlocks(Bootstrap& bootstrap, NodeHeap& heap,
                                                              absl::Span<const SharedBlockRequest> requests,
                                                              absl::Duration timeout);

  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// The blocks of which this rank holds a part, in the order of its requests: every rank lists those that it
// holds, and the holders of blocks list them in the same order. Those of the same holders are spread over
// their segments as evenly as they can be. Errors, the same on all ranks: kInvalidArgument (holders that are
// no ranks of one node; ranks that list different blocks), kResourceExhausted (a segment is too small).
absl::StatusOr<std::vector<SharedBlock>> ShareBlocks(Bootstrap& bootstrap, NodeHeap& heap,
                                                     absl::Span<const SharedBlockRequest> requests,
                                                     absl::Duration timeout);

}  // namespace weft
