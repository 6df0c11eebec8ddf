#include "weft/memory/node_block_pool.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "src/memory/free_list.h"
#include "weft/core/status.h"
#include "weft/memory/buffer_pool.h"

namespace weft {

// Shared by the pool and its blocks. Members are destroyed in the reverse order.
struct NodeBlockPool::State {
  State(std::shared_ptr<NodeHeap> of_heap, std::vector<std::shared_ptr<void>> keep, Options given)
      : keep_alive(std::move(keep)),
        heap(std::move(of_heap)),
        options(std::move(given)),
        buffers(*heap, options.name) {}

  std::vector<std::shared_ptr<void>> keep_alive;
  std::shared_ptr<NodeHeap> heap;
  const Options options;
  BufferPool buffers;
  std::mutex mutex;  // Held by Allocate: the bound counts the blocks of concurrent calls.
};

NodeBlockPool::NodeBlockPool(std::shared_ptr<NodeHeap> heap, std::vector<std::shared_ptr<void>> keep_alive,
                             Options options)
    : state_(std::make_shared<State>(std::move(heap), std::move(keep_alive), std::move(options))) {}
NodeBlockPool::~NodeBlockPool() = default;
NodeBlockPool::NodeBlockPool(NodeBlockPool&&) noexcept = default;
NodeBlockPool& NodeBlockPool::operator=(NodeBlockPool&&) noexcept = default;

absl::StatusOr<std::shared_ptr<std::byte>> NodeBlockPool::Allocate(size_t bytes) {
  const std::lock_guard lock(state_->mutex);
  const size_t in_use = state_->buffers.in_use_bytes();
  const size_t max = state_->options.max_bytes;
  if (bytes > max || in_use + internal::FreeList::BlockBytes(bytes) > max) {
    return absl::ResourceExhaustedError(absl::StrCat("node block pool ", state_->options.name, ": ", bytes,
                                                     " bytes do not fit its bound of ", max,
                                                     " bytes, of which ", in_use, " are in use"));
  }
  // The first member is destroyed last: the buffer returns to a pool that still exists.
  struct Block {
    std::shared_ptr<State> state;
    Buffer buffer;
  };
  WEFT_ASSIGN_OR_RETURN(Buffer buffer, state_->buffers.Acquire(bytes));
  auto block = std::make_shared<Block>(Block{state_, std::move(buffer)});
  std::byte* data = block->buffer.data();
  return std::shared_ptr<std::byte>(std::move(block), data);
}

size_t NodeBlockPool::in_use_bytes() const { return state_->buffers.in_use_bytes(); }

}  // namespace weft
