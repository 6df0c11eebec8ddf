#include "python/bindings/sharding.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "python/bindings/sharded_groups.h"
#include "weft/core/parallel.h"
#include "weft/optim/adamw.h"

namespace nb = nanobind;

namespace weft::python {
namespace {

// Addresses of parameter, gradient and both moments, and the number of elements.
using SliceArguments = std::tuple<uintptr_t, uintptr_t, uintptr_t, uintptr_t, int64_t>;

// Slices of type T, a float or a double.
template <typename T>
void AdamW(const std::vector<SliceArguments>& arguments, double lr, double beta1, double beta2, double eps,
           double weight_decay, int64_t step, double gradient_scale, int threads) {
  const nb::gil_scoped_release released;
  std::vector<AdamWSliceOf<T>> slices;
  slices.reserve(arguments.size());
  for (const auto& [param, grad, first, second, count] : arguments) {
    slices.push_back({reinterpret_cast<T*>(param), reinterpret_cast<const T*>(grad),
                      reinterpret_cast<T*>(first), reinterpret_cast<T*>(second), count});
  }
  const int before = ThreadCount();
  SetThreadCount(threads);
  AdamWStep(slices, {lr, beta1, beta2, eps, weight_decay}, step, gradient_scale);
  SetThreadCount(before);
}

std::shared_ptr<Groups> CreateGroups(std::shared_ptr<Session> session, const MeshArguments& mesh,
                                     const std::vector<GroupArguments>& groups,
                                     const std::string& node_shared, bool in_rows,
                                     int reshard_after_forward_size, std::optional<int> prefetch_depth,
                                     double gradient_divide_factor, int max_reduce_scatters,
                                     int max_all_reduces, const std::string& error) {
  return Groups::Create(std::move(session), mesh, groups,
                        {node_shared, in_rows, reshard_after_forward_size, prefetch_depth,
                         gradient_divide_factor, max_reduce_scatters, max_all_reduces, error});
}

// Calls a member of ShardedGroups that returns a Status, without the GIL.
template <typename... Arguments>
auto Call(absl::Status (ShardedGroups::*member)(Arguments...)) {
  return [member](Groups& self, std::remove_cvref_t<Arguments>... arguments) {
    self.Run([&](ShardedGroups& groups) { return (groups.*member)(arguments...); });
  };
}

using Pass = absl::Status (ShardedGroups::*)(int, const SchedulePass&);

auto CallOfPass(Pass member) {
  return [member](Groups& self, int group, uintptr_t pass, bool gradients) {
    self.Run([&](ShardedGroups& groups) { return (groups.*member)(group, {pass, gradients}); });
  };
}

template <typename... Arguments>
auto Set(void (ShardedGroups::*member)(Arguments...)) {
  return [member](Groups& self, std::remove_cvref_t<Arguments>... arguments) {
    (self.groups().*member)(std::move(arguments)...);
  };
}

// A setter of a function in Python, which `convert` turns into one of the schedule's. `self` outlives it.
template <typename Function>
auto SetFunction(void (ShardedGroups::*member)(int, Function), Function (*convert)(nb::object)) {
  return [member, convert](Groups& self, int group, nb::object function) {
    (self.groups().*member)(group, convert(std::move(function)));
  };
}

void BindSchedule(nb::class_<Groups>& groups) {
  groups.def("before_forward", CallOfPass(&ShardedGroups::BeforeForward))
      .def("after_forward", CallOfPass(&ShardedGroups::AfterForward))
      .def("before_backward", CallOfPass(&ShardedGroups::BeforeBackward))
      .def("after_backward", Call(&ShardedGroups::AfterBackward))
      .def("finish_backward", Call(&ShardedGroups::FinishBackward))
      .def("prepare_gradients", Call(&ShardedGroups::PrepareGradients))
      .def("abandon", [](Groups& self, uintptr_t pass) { self.groups().Abandon(pass); })
      .def("stop",
           [](Groups& self, const std::string& cause) {
             self.Run([&](ShardedGroups& groups) {
               groups.Stop(absl::AbortedError(cause));
               return absl::OkStatus();
             });
           })
      .def("unshard", Call(&ShardedGroups::Unshard))
      .def("wait_unshard", Call(&ShardedGroups::WaitUnshard))
      .def("reshard", Call(&ShardedGroups::Reshard))
      .def("is_unsharded", [](const Groups& self, int group) { return self.groups().is_unsharded(group); })
      .def("is_being_unsharded",
           [](const Groups& self, int group) { return self.groups().is_being_unsharded(group); })
      .def("prepare_writes", Call(&ShardedGroups::PrepareWrites))
      .def("reset_after_error", Call(&ShardedGroups::ResetAfterError));
}

void BindSetters(nb::class_<Groups>& groups) {
  groups.def("set_requires_gradient_sync", Set(&ShardedGroups::SetRequiresGradientSync))
      .def("set_requires_all_reduce", Set(&ShardedGroups::SetRequiresAllReduce))
      .def("set_reshard_after_forward", Set(&ShardedGroups::SetReshardAfterForward))
      .def("set_reshard_after_backward", Set(&ShardedGroups::SetReshardAfterBackward))
      .def("set_unshard_in_backward", Set(&ShardedGroups::SetUnshardInBackward))
      .def("set_forward_prefetch", Set(&ShardedGroups::SetForwardPrefetch))
      .def("set_backward_prefetch", Set(&ShardedGroups::SetBackwardPrefetch))
      .def("set_gradient_divide_factor", Set(&ShardedGroups::SetGradientDivideFactor))
      .def("set_is_last_backward", Set(&ShardedGroups::SetIsLastBackward))
      .def("set_custom_all_gather", SetFunction(&ShardedGroups::SetCustomAllGather, &AllGatherInPython),
           nb::arg("group"), nb::arg("function").none())
      .def("set_custom_reduce_scatter",
           SetFunction(&ShardedGroups::SetCustomReduceScatter, &ReduceScatterInPython), nb::arg("group"),
           nb::arg("function").none())
      .def("set_gradient_hook", SetFunction(&ShardedGroups::SetGradientHook, &GradientHookInPython),
           nb::arg("group"), nb::arg("hook").none());
}

template <typename T>
void BindAdamW(nb::module_& module, const char* name) {
  module.def(name, &AdamW<T>, nb::arg("slices"), nb::arg("lr"), nb::arg("beta1"), nb::arg("beta2"),
             nb::arg("eps"), nb::arg("weight_decay"), nb::arg("step"), nb::arg("gradient_scale"),
             nb::arg("threads"));
}

void BindTensors(nb::class_<Groups>& groups) {
  groups.def("data_addresses", &Groups::DataAddresses)
      .def("data_view", &Groups::DataView)
      .def("gradient_address", &Groups::GradientAddress)
      .def("gradient_view", &Groups::GradientView)
      .def("begin_gradient_write", &Groups::BeginGradientWrite)
      .def("masters", &Groups::Masters)
      .def("reduced_parameters",
           [](const Groups& self, int group) { return self.groups().ReducedParameters(group); })
      .def("reduced_gradients", &Groups::ReducedGradients)
      .def("forget_reduced_gradients", &Groups::ForgetReducedGradients)
      .def("clip_grad_norm", &Groups::ClipGradNorm);
}

void BindReports(nb::class_<Groups>& groups) {
  groups
      .def_prop_ro("residency",
                   [](const Groups& self) { return std::string(Name(self.groups().residency().residency)); })
      .def_prop_ro("residency_reason", [](const Groups& self) { return self.groups().residency().reason; })
      .def("counters",
           [](const Groups& self) {
             const ShardingCounters counters = self.groups().counters();
             nb::dict values;
             values["all_gathers"] = counters.all_gathers;
             values["reduce_scatters"] = counters.reduce_scatters;
             values["all_reduces"] = counters.all_reduces;
             values["copied_bytes"] = counters.copied_bytes;
             values["unshared_images"] = counters.unshared_images;
             return values;
           })
      .def("peaks", [](const Groups& self) {
        const MemoryPeaks peaks = self.groups().peaks();
        nb::dict values;
        values["image_bytes"] = peaks.image_bytes;
        values["gradient_bytes"] = peaks.gradient_bytes;
        values["shard_bytes"] = peaks.shard_bytes;
        return values;
      });
}

}  // namespace

void BindSharding(nb::module_& module) {
  nb::class_<Groups> groups(module, "ShardedGroups");
  groups
      .def_static("create", &CreateGroups, nb::arg("session"), nb::arg("mesh"), nb::arg("groups"),
                  nb::kw_only(), nb::arg("node_shared") = "auto", nb::arg("in_rows") = true,
                  nb::arg("reshard_after_forward_size") = 0, nb::arg("prefetch_depth") = nb::none(),
                  nb::arg("gradient_divide_factor") = 1.0, nb::arg("max_reduce_scatters") = 2,
                  nb::arg("max_all_reduces") = 2, nb::arg("error") = "")
      .def("close", &Groups::Close);
  BindSchedule(groups);
  BindSetters(groups);
  BindTensors(groups);
  BindReports(groups);
  BindAdamW<float>(module, "adamw_step_f32");
  BindAdamW<double>(module, "adamw_step_f64");
}

}  // namespace weft::python
