#include "python/bindings/private_heap.h"

#include <unistd.h>

#include <memory>
#include <utility>

#include "python/bindings/errors.h"
#include "python/interface/private_memory.h"
#include "weft/memory/private_heap.h"

namespace nb = nanobind;

namespace weft::python {
namespace {

class HeapMemory final : public PrivateMemory {
 public:
  explicit HeapMemory(std::unique_ptr<PrivateHeap> heap) : heap_(std::move(heap)) {}

  void* Allocate(size_t bytes) override { return heap_->Allocate(bytes); }
  void Free(void* block) override { heap_->Free(static_cast<std::byte*>(block)); }
  bool Contains(const void* pointer) const override { return heap_->Contains(pointer); }
  void ReleaseHoles() { heap_->ReleaseHoles(); }
  size_t in_use_bytes() const { return heap_->in_use_bytes(); }

 private:
  const std::unique_ptr<PrivateHeap> heap_;
};

// Never destroyed: tensors may live until the process ends. REQUIRES: the interpreter's lock.
HeapMemory* memory_of_process = nullptr;

// There are addresses for as much memory as the machine has.
nb::capsule PrivateMemoryOfProcess() {
  if (memory_of_process == nullptr) {
    const auto bytes =
        static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
    memory_of_process = new HeapMemory(ValueOrRaise(PrivateHeap::Create(bytes)));
  }
  return nb::capsule(static_cast<PrivateMemory*>(memory_of_process), kPrivateMemoryCapsule);
}

}  // namespace

void BindPrivateHeap(nb::module_& module) {
  module.def("private_memory", &PrivateMemoryOfProcess,
             "The private heap of this process for other extension modules: "
             "python/interface/private_memory.h.\n"
             "\n"
             "Raises MemoryError (no addresses).");
  module.def(
      "private_memory_in_use",
      [] { return memory_of_process == nullptr ? 0 : memory_of_process->in_use_bytes(); },
      "Bytes of the private heap in use.");
  module.def(
      "release_private_memory",
      [] {
        if (memory_of_process != nullptr) memory_of_process->ReleaseHoles();
      },
      "Returns the memory of the private heap that is not in use to the system.");
}

}  // namespace weft::python
