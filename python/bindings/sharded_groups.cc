#include "python/bindings/sharded_groups.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>

#include <absl/strings/str_cat.h>
#include <absl/time/time.h>

#include "python/bindings/errors.h"
#include "python/bindings/python_store.h"
#include "weft/core/status.h"

namespace nb = nanobind;

namespace weft::python {
namespace {

// Time that the end of the groups gives to calls of other threads, and as much again after an abort.
constexpr absl::Duration kCallPatience = absl::Seconds(10);

// Raises the exception of a signal handler, a hook or the store, if one ended the call, otherwise that of the
// status.
[[noreturn]] void RaiseFirst(const Session& session, const absl::Status& status) {
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  RethrowPendingOf(session.store());
  Raise(status);
}

// Runs on the thread that waits, which has released the GIL. Python runs signal handlers on the main thread
// only, and only here while that thread waits.
absl::Status CheckSignals() {
  const nb::gil_scoped_acquire acquired;
  return PyErr_CheckSignals() == 0 ? absl::OkStatus() : absl::CancelledError("interrupted by a signal");
}

// REQUIRES: the GIL is not held.
void Warn(const std::string& message) {
  const nb::gil_scoped_acquire acquired;
  if (PyErr_WarnEx(PyExc_RuntimeWarning, message.c_str(), 1) != 0) PyErr_WriteUnraisable(nullptr);
}

DType DTypeNamed(const std::string& name) {
  const absl::StatusOr<DType> dtype = ParseDType(name);
  if (dtype.ok() && IsFloating(*dtype)) return *dtype;
  throw std::invalid_argument("dtype '" + name + "' is none of f32, bf16, f16, f64");
}

NodeShared NodeSharedNamed(const std::string& name) {
  for (const NodeShared value : {NodeShared::kAuto, NodeShared::kOn, NodeShared::kOff}) {
    if (name == Name(value)) return value;
  }
  throw std::invalid_argument("node_shared '" + name + "' is none of auto, on, off");
}

ShardingPolicy PolicyOf(const ShardingArguments& arguments,
                        std::unordered_map<const Parameter*, ParameterDTypes> dtypes,
                        std::unordered_map<const Parameter*, int> dims) {
  ShardingPolicy policy;
  policy.layout = arguments.in_rows ? FlatKind::kRows : FlatKind::kPerParameter;
  policy.node_shared = NodeSharedNamed(arguments.node_shared);
  policy.reshard_after_forward_size = arguments.reshard_after_forward_size;
  policy.prefetch_depth = arguments.prefetch_depth;
  policy.gradient_divide_factor = arguments.gradient_divide_factor;
  policy.max_reduce_scatters = arguments.max_reduce_scatters;
  policy.max_all_reduces = arguments.max_all_reduces;
  policy.dtypes_of = [dtypes = std::move(dtypes)](const Parameter& parameter) {
    return dtypes.at(&parameter);
  };
  if (!arguments.in_rows) {
    policy.shard_dim = [dims = std::move(dims)](const Parameter& parameter) { return dims.at(&parameter); };
  }
  return policy;
}

// The tensor holds `owner` until it is freed.
TorchTensor View(void* data, DType dtype, const Shape& shape, std::shared_ptr<const void> owner) {
  const std::vector<size_t> sizes(shape.begin(), shape.end());
  nb::capsule held(new std::shared_ptr<const void>(std::move(owner)),
                   [](void* pointer) noexcept { delete static_cast<std::shared_ptr<const void>*>(pointer); });
  return TorchTensor(data, sizes.size(), sizes.data(), held, nullptr, DLPackType(dtype));
}

// Reduced gradients of some groups, freed before the groups.
struct HeldGradients {
  std::shared_ptr<const Groups> groups;
  std::shared_ptr<const void> gradients;
};

absl::StatusOr<NormType> NormTypeOf(double norm_type) {
  if (norm_type == 1) return NormType::kOne;
  if (norm_type == 2) return NormType::kTwo;
  if (std::isinf(norm_type) && norm_type > 0) return NormType::kInfinity;
  return absl::InvalidArgumentError(absl::StrCat(
      "norm_type is ", norm_type, ", but must be 1, 2 or inf: use torch.nn.utils.clip_grad_norm_"));
}

}  // namespace

class Groups::Owned {
 public:
  // `name`: the model's name, for the warning.
  explicit Owned(std::string name) : name_(std::move(name)) {}

  // Null: they are not made yet, or closed. REQUIRES: the GIL. A counted call may use them without it.
  ShardedGroups* get() const { return groups_.get(); }
  // REQUIRES: no other thread knows this object.
  void Set(std::unique_ptr<ShardedGroups> groups) { groups_ = std::move(groups); }

  // For a forked child: Note [Forked children].
  void Keep() { static_cast<void>(groups_.release()); }

  // Ends the groups once no thread is in a call of them, and returns after their end, whichever thread has
  // ended them. Aborts the engine if a call has not ended after ten seconds, or the timeout of the session if
  // that is shorter. If it does not end in as much time again, as in a hook that hangs, keeps the groups and
  // warns. Returns false if they are kept: they use the engine.
  // REQUIRES: the GIL is not held, and this thread is in no call of the groups.
  bool End(const Session& session) {
    const std::lock_guard end_lock(end_mutex_);
    std::unique_ptr<ShardedGroups> ended;
    {
      const nb::gil_scoped_acquire acquired;
      ended = std::move(groups_);
    }
    if (ended == nullptr) return !are_kept_;
    const absl::Duration patience = std::min(kCallPatience, session.options().timeout);
    if (!WaitForCalls(patience)) {
      session.Abort(absl::StrCat("rank ", session.rank(),
                                 " closed a sharded model before a call of another thread had ended"));
      are_kept_ = !WaitForCalls(patience);
    }
    if (are_kept_) {
      static_cast<void>(ended.release());
      Warn(absl::StrCat(
          "the memory of the sharded model '", name_,
          "' is kept until the process ends: a call of another thread, such as a hook, has not ended. "
          "Let the hook return, or join its thread, before destroy_process_group()"));
    } else {
      ended->SetWaitCheck(nullptr);
    }
    return !are_kept_;
  }

  void BeginCall() {
    const std::lock_guard lock(calls_mutex_);
    ++calls_;
  }
  void EndCall() {
    const std::lock_guard lock(calls_mutex_);
    --calls_;
    call_ended_.notify_all();
  }

 private:
  // False if a thread is in a call of the groups after `patience`.
  bool WaitForCalls(absl::Duration patience) {
    std::unique_lock lock(calls_mutex_);
    return call_ended_.wait_for(lock, absl::ToChronoNanoseconds(patience), [&] { return calls_ == 0; });
  }

  const std::string name_;
  std::mutex end_mutex_;
  bool are_kept_ = false;                  // Guarded by end_mutex_.
  std::unique_ptr<ShardedGroups> groups_;  // Guarded by the GIL.
  std::mutex calls_mutex_;
  std::condition_variable call_ended_;
  int calls_ = 0;  // Guarded by calls_mutex_.
};

// REQUIRES: the GIL, at the beginning.
class Groups::CountedCall {
 public:
  explicit CountedCall(Owned& owned) : owned_(owned) { owned_.BeginCall(); }
  ~CountedCall() { owned_.EndCall(); }
  CountedCall(const CountedCall&) = delete;
  CountedCall& operator=(const CountedCall&) = delete;

 private:
  Owned& owned_;
  const Session::OwnCall own_call_;
};

Groups::Groups(std::shared_ptr<Session> session, std::string name,
               std::vector<std::vector<std::shared_ptr<Parameter>>> parameters)
    : session_(std::move(session)),
      parameters_(std::move(parameters)),
      owned_(std::make_shared<Owned>(std::move(name))) {}

std::shared_ptr<Groups> Groups::Create(std::shared_ptr<Session> session, const MeshArguments& mesh,
                                       const std::vector<GroupArguments>& groups,
                                       const ShardingArguments& arguments) {
  std::vector<GroupMembers> members;
  std::vector<std::vector<std::shared_ptr<Parameter>>> parameters;
  std::unordered_map<const Parameter*, ParameterDTypes> dtypes;
  std::unordered_map<const Parameter*, int> dims;
  for (const auto& [name, parent, master_dtype, param_dtype, reduce_dtype, group_parameters] : groups) {
    const ParameterDTypes group_dtypes{DTypeNamed(param_dtype), DTypeNamed(reduce_dtype), std::nullopt,
                                       DTypeNamed(master_dtype)};
    GroupMembers& group = members.emplace_back(GroupMembers{name, parent, {}});
    for (const auto& [parameter_name, shape, requires_grad, dim] : group_parameters) {
      auto parameter = std::make_shared<Parameter>();
      parameter->name = parameter_name;
      parameter->shape = Shape(shape.begin(), shape.end());
      parameter->requires_grad = requires_grad;
      dtypes[parameter.get()] = group_dtypes;
      dims[parameter.get()] = dim;
      group.parameters.push_back(std::move(parameter));
    }
    parameters.push_back(group.parameters);
  }
  const ShardingPolicy policy = PolicyOf(arguments, std::move(dtypes), std::move(dims));
  std::vector<MeshAxis> axes;
  for (const auto& [name, size] : mesh) axes.push_back({name, size});
  const std::string root = groups.empty() ? "" : std::get<0>(groups.front());
  std::shared_ptr<Groups> created(new Groups(std::move(session), root, std::move(parameters)));
  // Masters are zero until the caller writes them.
  const ShardLoader zeros = [](const Parameter&, int64_t, int64_t count, float* out) {
    std::fill_n(out, count, 0.0F);
    return absl::OkStatus();
  };
  const auto make = [&](CommEngine& engine) -> absl::Status {
    const absl::StatusOr<DeviceMesh> device_mesh =
        arguments.error.empty() ? DeviceMesh::Create(std::move(axes), created->session_->size())
                                : absl::InvalidArgumentError(arguments.error);
    // Peers without an error are in the agreement of ShardedGroups::Create.
    if (!device_mesh.ok()) return AgreeOnStatus(engine.bootstrap(), device_mesh.status(), engine.timeout());
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<ShardedGroups> made,
                          ShardedGroups::Create(engine, *device_mesh, std::move(members), policy, zeros));
    made->SetWaitCheck(CheckSignals);
    created->owned_->Set(std::move(made));
    return created->session_->OnClose(
        [owned = created->owned_, session = created->session_.get()] { return owned->End(*session); });
  };
  absl::Status status;
  {
    const Session::OwnCall own_call;
    const nb::gil_scoped_release released;
    status.Update(created->session_->WithEngine([&](CommEngine& engine) {
      status = make(engine);
      if (!status.ok()) created->owned_->End(*created->session_);  // Before the engine may end.
    }));
  }
  if (!status.ok()) {
    RaiseFirst(*created->session_, Annotate(status, absl::StrCat("sharding '", root, "'")));
  }
  return created;
}

Groups::~Groups() { End(); }

void Groups::Close() {
  if (Session::OwnCall::IsActive()) {
    throw std::runtime_error(
        "the sharded model may be used by a call on this thread: close it after the call");
  }
  End();
}

void Groups::End() {
  if (!session_->is_of_this_process()) return owned_->Keep();
  const nb::gil_scoped_release released;
  owned_->End(*session_);
}

ShardedGroups& Groups::groups() const {
  ShardedGroups* const groups = owned_->get();
  if (groups == nullptr) throw std::runtime_error("the sharded model is closed: its process group has ended");
  if (!session_->is_of_this_process()) {
    throw std::runtime_error("this process is a forked child: the sharded model belongs to its parent");
  }
  return *groups;
}

void Groups::Run(const std::function<absl::Status(ShardedGroups&)>& call) {
  ShardedGroups& called = groups();
  absl::Status status;
  bool has_failed = false;
  {
    const CountedCall counted(*owned_);
    const nb::gil_scoped_release released;
    status = call(called);
    has_failed = !called.status().ok();  // Another model may have reset the engine since.
  }
  if (status.ok()) return;
  static_cast<void>(
      session_->WithEngine([&](CommEngine& engine) { has_failed = has_failed || !engine.status().ok(); }));
  if (!has_failed) RaiseFirst(*session_, status);  // An argument was wrong.
  RaiseFirst(*session_,
             absl::Status(status.code(), absl::StrCat(status.message(),
                                                      "; call weft.reset(model) on all ranks, then go on")));
}

Parameter& Groups::At(int group, int parameter) const {
  static_cast<void>(groups());  // Closed groups have no memory.
  return *parameters_.at(static_cast<size_t>(group)).at(static_cast<size_t>(parameter));
}

int Groups::IndexOf(int group, const Parameter* parameter) const {
  const auto& members = parameters_[static_cast<size_t>(group)];
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i].get() == parameter) return static_cast<int>(i);
  }
  throw std::logic_error("a shard of a parameter of another group");
}

std::vector<uintptr_t> Groups::DataAddresses(int group) const {
  static_cast<void>(groups());
  std::vector<uintptr_t> addresses;
  for (const auto& parameter : parameters_.at(static_cast<size_t>(group))) {
    addresses.push_back(reinterpret_cast<uintptr_t>(parameter->data.data));
  }
  return addresses;
}

TorchTensor Groups::DataView(int group, int parameter) {
  const TensorView& data = At(group, parameter).data;
  if (data.data == nullptr) throw std::runtime_error("'" + At(group, parameter).name + "' is sharded");
  return View(data.data, data.dtype, data.shape, shared_from_this());
}

uintptr_t Groups::GradientAddress(int group, int parameter) const {
  return reinterpret_cast<uintptr_t>(At(group, parameter).grad.data);
}

TorchTensor Groups::GradientView(int group, int parameter) {
  const TensorView& grad = At(group, parameter).grad;
  if (grad.data == nullptr) throw std::runtime_error("'" + At(group, parameter).name + "' has no gradient");
  return View(grad.data, grad.dtype, grad.shape, shared_from_this());
}

bool Groups::BeginGradientWrite(int group, int parameter) {
  return At(group, parameter).BeginGradWrite() != 0.0F;
}

std::vector<std::pair<int, TorchTensor>> Groups::Masters(int group) {
  std::vector<std::pair<int, TorchTensor>> masters;
  const DType dtype = groups().dtypes(group).master;
  for (const MasterView& shard : groups().Masters(group)) {
    masters.emplace_back(IndexOf(group, shard.parameter),
                         View(shard.data, dtype, {shard.elements()}, shared_from_this()));
  }
  return masters;
}

std::vector<std::pair<int, std::optional<TorchTensor>>> Groups::ReducedGradients(int group) {
  const auto owner = std::make_shared<const HeldGradients>(
      HeldGradients{shared_from_this(), groups().ReducedGradients(group)});
  std::vector<std::pair<int, std::optional<TorchTensor>>> gradients;
  const DType dtype = groups().dtypes(group).master;
  for (const MasterView& shard : groups().ReducedSums(group)) {
    auto& [index, gradient] = gradients.emplace_back(IndexOf(group, shard.parameter), std::nullopt);
    if (shard.grad != nullptr) gradient = View(shard.grad, dtype, {shard.elements()}, owner);
  }
  return gradients;
}

void Groups::ForgetReducedGradients(const std::vector<std::pair<int, int>>& parameters) {
  std::unordered_set<const Parameter*> forgotten;
  for (const auto& [group, parameter] : parameters) forgotten.insert(&At(group, parameter));
  Run([&](ShardedGroups& groups) {
    return groups.ForgetReducedGradients(
        [&](const Parameter& parameter) { return forgotten.contains(&parameter); });
  });
}

std::pair<double, double> Groups::ClipGradNorm(double max_norm, double norm_type,
                                               const std::vector<std::tuple<int, int, uintptr_t>>& external) {
  ExternalGradients gradients;
  for (const auto& [group, parameter, address] : external) {
    gradients.emplace(&At(group, parameter), reinterpret_cast<const std::byte*>(address));
  }
  GradientNorm norm{};
  Run([&](ShardedGroups& groups) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const NormType type, NormTypeOf(norm_type));
    const ClipSet all{[](const Parameter&) { return true; }, max_norm};
    WEFT_ASSIGN_OR_RETURN(const std::vector<GradientNorm> norms,
                          groups.ClipGradNorms({&all, 1}, type, gradients));
    norm = norms.front();
    return absl::OkStatus();
  });
  return {norm.norm, norm.factor};
}

}  // namespace weft::python
