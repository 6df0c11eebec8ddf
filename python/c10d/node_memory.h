// Allocations of PyTorch in weft's memory: the context behind weft.torch.node_memory, and the private heap.
//
// Note [CPU allocator]
// Problem: the collectives stage tensors outside of node memory, and PyTorch allocates most tensors itself:
//   the buckets of DistributedDataParallel, the results of operators.
// Rule: the first context puts an allocator of weft in the place of PyTorch's CPU allocator. It forwards to
//   the allocator that it replaces, unless the thread is in a context and the allocation has
//   kMinNodeMemoryBytes or more. If another library has replaced the CPU allocator since, the next context
//   puts a further allocator over that one. Allocators are never removed or destroyed: storages point to
//   theirs.
// Why it suffices: an allocation owns its block, however it ends, and a block keeps the heap (session.h). A
//   storage that grows outside of a context moves to ordinary memory. A forked child gets ordinary memory.
// Allocator::raw_allocate fails in a context, as it checks that a block can be freed by raw_deleter().
//   PyTorch does not use it for tensors.
//
// Note [Private heap]
// Problem: activations of a step, gradients of weights and the halves of them that operators return have all
//   sizes. In malloc's heap they lie between everything else, and in the holes that the unsharded model left:
//   the heap takes half again as much memory as its blocks have at their peak.
// Rule: use_private_memory makes the same allocator serve blocks of kMinNodeMemoryBytes to kMaxPrivateBytes
//   from one heap of their own (weft/memory/private_heap.h), on all threads, outside of contexts. The
//   replaced allocator has the smaller ones and the larger ones, which malloc maps one by one.
#pragma once

#include <c10/core/Allocator.h>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/utils/pybind.h>

#include "python/interface/group_collectives.h"

namespace weft::python {

// Smaller allocations stay in ordinary memory: to stage them costs little, and PyTorch makes many of them.
inline constexpr size_t kMinNodeMemoryBytes = size_t{64} * 1024;

// Larger blocks stay out of the private heap: malloc's own bound of what it keeps after it was freed.
inline constexpr size_t kMaxPrivateBytes = size_t{32} << 20;

// A context in which PyTorch's CPU allocations of one thread come from the node memory of a group's session.
//
// Contexts nest: the innermost is in force.
// Thread safety: owned by the thread that enters it.
// Lifetime: the thread holds the contexts that it is in.
class NodeMemoryContext : public std::enable_shared_from_this<NodeMemoryContext> {
 public:
  explicit NodeMemoryContext(std::shared_ptr<GroupCollectives> group) : group_(std::move(group)) {}

  // Errors: RuntimeError if the context was entered before.
  void Enter();
  // Errors: RuntimeError if this is not the innermost context of the calling thread.
  void Exit();

  // Returns an empty pointer if node memory has no block, and counts that.
  c10::DataPtr Allocate(size_t bytes);

  // Allocations that went to ordinary memory instead.
  int64_t refused() const { return refused_; }
  int64_t refused_bytes() const { return refused_bytes_; }
  const std::string& error() const { return error_; }  // Why the first of them did.

 private:
  const std::shared_ptr<GroupCollectives> group_;
  bool was_entered_ = false;
  std::shared_ptr<NodeMemoryContext> outer_;
  int64_t refused_ = 0;
  int64_t refused_bytes_ = 0;
  std::string error_;
};

// Adds the class NodeMemoryContext and use_private_memory(memory) to the module; `memory` is the capsule of
// weft._core.private_memory. REQUIRES: the class Backend is there.
void BindNodeMemory(pybind11::module_& module);

}  // namespace weft::python
