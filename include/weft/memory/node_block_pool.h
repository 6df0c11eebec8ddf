// Blocks of node memory that keep their heap alive, for owners whose end the program does not control, such
// as the tensors of a Python program.
//
//   NodeBlockPool pool(heap, {bootstrap}, {.name = "tensors"});
//   absl::StatusOr<std::shared_ptr<std::byte>> block = pool.Allocate(bytes);
//   if (!block.ok()) ...  // Use other memory: the engine stages it, which copied_bytes counts.
//
// Thread safety: all members may be called from any thread of the rank; blocks may be released on any thread.
// Lifetime: a block stays valid after the pool, the handles of the heap, and an engine on it. The last of
//   them destroys the heap, and then what the pool keeps for it, on its own thread. A program that must end
//   MPI at a known place therefore first brings in_use_bytes() to 0.
#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

#include "weft/memory/node_heap.h"

namespace weft {

class NodeBlockPool {
 public:
  struct Options {
    std::string name = "blocks";  // Appears in messages.
    // Bound of in_use_bytes(). Idle blocks, which the pool keeps for reuse, return to the heap when another
    // user of the heap needs them: Note [Idle blocks].
    size_t max_bytes = std::numeric_limits<size_t>::max();
  };
  // `keep_alive`: what the heap needs and does not own, such as its bootstrap. Destroyed after the heap.
  NodeBlockPool(std::shared_ptr<NodeHeap> heap, std::vector<std::shared_ptr<void>> keep_alive,
                Options options);
  ~NodeBlockPool();
  NodeBlockPool(NodeBlockPool&&) noexcept;
  NodeBlockPool& operator=(NodeBlockPool&&) noexcept;

  // Returns a block of at least `bytes`, 64-byte aligned, with undefined contents. The last copy of the
  // handle returns it to the pool. Blocks of 0 bytes differ from each other.
  // REQUIRES: the last handle goes after the operations on the block are *released* (Work::Detach can hold
  //   one until then).
  // Errors: kResourceExhausted (the bound or the heap's memory is reached; names the pool, its bytes in use
  //   and the bytes requested). The pool can be used further.
  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(size_t bytes);

  // Sizes of the blocks in use, each rounded up to a multiple of 64 bytes.
  size_t in_use_bytes() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace weft
