#include "python/c10d/node_memory.h"

#include <atomic>
#include <c10/core/CPUAllocator.h>
#include <limits>
#include <mutex>
#include <utility>

#include "python/c10d/backend.h"
#include "python/interface/private_memory.h"

namespace weft::python {
namespace {

// The innermost context of this thread.
thread_local std::shared_ptr<NodeMemoryContext> current_context;

// The heap of allocations outside of contexts; null: the replaced allocator makes them.
std::atomic<PrivateMemory*> private_memory = nullptr;

struct Block {
  std::shared_ptr<void> memory;
};

void DeleteBlock(void* held) {
  const std::unique_ptr<Block> block(static_cast<Block*>(held));
  c10::profiledCPUMemoryReporter().Delete(block->memory.get());
}

void DeletePrivate(void* data) {
  c10::profiledCPUMemoryReporter().Delete(data);
  private_memory.load()->Free(data);
}

c10::DataPtr AllocatePrivate(size_t bytes) {
  PrivateMemory* const memory = private_memory.load();
  if (memory == nullptr || bytes < kMinNodeMemoryBytes || bytes > kMaxPrivateBytes) return {};
  void* const data = memory->Allocate(bytes);
  if (data == nullptr) return {};
  c10::profiledCPUMemoryReporter().New(data, bytes);
  return {data, data, &DeletePrivate, c10::Device(c10::DeviceType::CPU)};
}

class DelegatingAllocator final : public c10::Allocator {
 public:
  explicit DelegatingAllocator(c10::Allocator* replaced) : replaced_(replaced) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (current_context == nullptr || bytes < kMinNodeMemoryBytes) {
      if (c10::DataPtr data = AllocatePrivate(bytes)) return data;
      return replaced_->allocate(bytes);
    }
    if (c10::DataPtr data = current_context->Allocate(bytes)) return data;
    // The replaced allocator may be another library's that forwards to one of these.
    const OutsideOfContexts outside;
    return replaced_->allocate(bytes);
  }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override {
    return replaced_->is_simple_data_ptr(data);
  }
  c10::DeleterFnPtr raw_deleter() const override;
  c10::Allocator* replaced() const { return replaced_; }
  void copy_data(void* target, const void* source, size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }

 private:
  class OutsideOfContexts {
   public:
    OutsideOfContexts() : kept_(std::exchange(current_context, nullptr)) {}
    OutsideOfContexts(const OutsideOfContexts&) = delete;
    OutsideOfContexts& operator=(const OutsideOfContexts&) = delete;
    ~OutsideOfContexts() { current_context = std::move(kept_); }

   private:
    std::shared_ptr<NodeMemoryContext> kept_;
  };

  c10::Allocator* const replaced_;
};

// The newest allocator, which is in the place of PyTorch's unless another library has replaced it since.
std::atomic<DelegatingAllocator*> newest = nullptr;

void DeleteRaw(void* data) {
  PrivateMemory* const memory = private_memory.load();
  if (memory != nullptr && memory->Contains(data)) return DeletePrivate(data);
  newest.load()->replaced()->raw_deleter()(data);
}

c10::DeleterFnPtr DelegatingAllocator::raw_deleter() const {
  return private_memory.load() == nullptr ? replaced_->raw_deleter() : &DeleteRaw;
}

// Note [CPU allocator].
void InstallAllocator() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (newest.load() != nullptr && c10::GetCPUAllocator() == newest.load()) return;
  DelegatingAllocator* const installed = new DelegatingAllocator(c10::GetCPUAllocator());
  newest = installed;
  // PyTorch does not tell the priority of the current allocator, and ignores an allocator of a lower one.
  for (int priority = 0; c10::GetCPUAllocator() != installed; ++priority) {
    TORCH_CHECK(priority <= std::numeric_limits<uint8_t>::max(),
                "PyTorch's CPU allocator cannot be replaced");
    c10::SetCPUAllocator(installed, static_cast<uint8_t>(priority));
  }
}

void UsePrivateMemory(const pybind11::capsule& capsule) {
  auto* const memory =
      static_cast<PrivateMemory*>(PyCapsule_GetPointer(capsule.ptr(), kPrivateMemoryCapsule));
  if (memory == nullptr) throw pybind11::error_already_set();
  private_memory = memory;
  InstallAllocator();
}

}  // namespace

void NodeMemoryContext::Enter() {
  TORCH_CHECK(!was_entered_, "weft: this node_memory context was entered before; call node_memory() anew");
  was_entered_ = true;
  InstallAllocator();
  outer_ = std::exchange(current_context, shared_from_this());
}

void NodeMemoryContext::Exit() {
  TORCH_CHECK(
      current_context.get() == this,
      "weft: node_memory ends on another thread than it began, or before one that began inside it; end it "
      "where it began");
  current_context = std::move(outer_);
}

c10::DataPtr NodeMemoryContext::Allocate(size_t bytes) {
  GroupCollectives::Allocation allocation = group_->Allocate(bytes);
  if (allocation.block == nullptr) {
    if (refused_ == 0) error_ = std::move(allocation.error);
    ++refused_;
    refused_bytes_ += static_cast<int64_t>(bytes);
    return {};
  }
  void* const data = allocation.block.get();
  auto block = std::make_unique<Block>(std::move(allocation.block));
  c10::profiledCPUMemoryReporter().New(data, bytes);
  return {data, block.release(), &DeleteBlock, c10::Device(c10::DeviceType::CPU)};
}

void BindNodeMemory(pybind11::module_& module) {
  module.def("use_private_memory", &UsePrivateMemory, pybind11::arg("memory"));
  pybind11::class_<NodeMemoryContext, std::shared_ptr<NodeMemoryContext>>(module, "NodeMemoryContext")
      .def(pybind11::init([](const c10::intrusive_ptr<WeftBackend>& backend) {
             return std::make_shared<NodeMemoryContext>(backend->group());
           }),
           pybind11::arg("backend"))
      .def("enter", &NodeMemoryContext::Enter)
      .def("exit", &NodeMemoryContext::Exit)
      .def_property_readonly("refused", &NodeMemoryContext::refused)
      .def_property_readonly("refused_bytes", &NodeMemoryContext::refused_bytes)
      .def_property_readonly("error", &NodeMemoryContext::error);
}

}  // namespace weft::python
