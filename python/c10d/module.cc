// The extension module weft._c10d.
#include <chrono>
#include <memory>
#include <pybind11/chrono.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/utils/pybind.h>
#include <utility>
#include <vector>

#include "python/c10d/backend.h"
#include "python/c10d/direct_linear.h"
#include "python/c10d/node_memory.h"
#include "python/c10d/repoint_storage.h"
#include "python/c10d/sole_views.h"
#include "python/interface/group_collectives.h"

namespace py = pybind11;

namespace weft::python {
namespace {

c10::intrusive_ptr<WeftBackend> MakeBackend(const py::capsule& group, std::string name,
                                            std::vector<uint64_t> global_ranks,
                                            std::chrono::milliseconds timeout, bool closes_session,
                                            c10::intrusive_ptr<::c10d::Store> store,
                                            std::string store_prefix) {
  auto* const held =
      static_cast<std::shared_ptr<GroupCollectives>*>(PyCapsule_GetPointer(group.ptr(), kGroupCapsule));
  if (held == nullptr) throw py::error_already_set();
  return c10::make_intrusive<WeftBackend>(
      *held, WeftBackend::Settings{std::move(name), std::move(global_ranks), timeout, closes_session,
                                   std::move(store), std::move(store_prefix)});
}

}  // namespace

PYBIND11_MODULE(_c10d, module) {
  module.doc() = "The c10d backend of weft. Use it through weft.torch.";
  // The base class, and the classes Store and Work.
  py::module_::import("torch._C._distributed_c10d");
  py::class_<WeftBackend, ::c10d::Backend, c10::intrusive_ptr<WeftBackend>>(module, "Backend");
  module.def("make_backend", &MakeBackend, py::arg("group"), py::arg("name"), py::arg("global_ranks"),
             py::arg("timeout"), py::arg("closes_session"), py::arg("store"), py::arg("store_prefix"));
  BindNodeMemory(module);
  BindRepointStorage(module);
  BindSoleViews(module);
  BindDirectLinear(module);
}

}  // namespace weft::python
