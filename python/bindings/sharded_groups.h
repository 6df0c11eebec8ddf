// Parameter groups as Python drives them: by group number and index of a parameter in its group.
//
// Calls that may wait release the GIL and look for signals about every 50 ms. A signal handler's exception,
// such as KeyboardInterrupt, ends the wait, fails the groups on all ranks, and is raised.
//
// Thread safety: one thread at a time, but Close and Session::Close, which end the calls of other threads.
// Errors: those of python/bindings/errors.h, with the Status' message.
// Lifetime: tensors that view masters or images hold the groups, and tensors that view gradients also their
//   memory. Close gives the memory up earlier; nothing may use the tensors then while the session is open.
//   Once it is closed, they are readable, as nothing else gets the memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nanobind/nanobind.h>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/bindings/custom_collectives.h"
#include "python/bindings/session.h"
#include "weft/sharding/sharded_groups.h"

namespace weft::python {

// Name, shape, whether it requires a gradient, dim on which it is sharded.
using ParameterArguments = std::tuple<std::string, std::vector<int64_t>, bool, int>;
// Name, number of the parent, dtypes of masters, of parameters and of reductions, parameters.
using GroupArguments =
    std::tuple<std::string, int, std::string, std::string, std::string, std::vector<ParameterArguments>>;
using MeshArguments = std::vector<std::pair<std::string, int>>;

struct ShardingArguments {
  std::string node_shared = "auto";
  bool in_rows = true;  // True if all parameters are sharded on dim 0.
  int reshard_after_forward_size = 0;
  std::optional<int> prefetch_depth;
  double gradient_divide_factor = 1.0;
  int max_reduce_scatters = 2;
  int max_all_reduces = 2;
  std::string error;  // Why this rank cannot create the groups. Empty: it can.
};

class Groups : public std::enable_shared_from_this<Groups> {
 public:
  // Errors: those of ShardedGroups::Create, and ValueError (`error` of some rank). All ranks raise the same.
  static std::shared_ptr<Groups> Create(std::shared_ptr<Session> session, const MeshArguments& mesh,
                                        const std::vector<GroupArguments>& groups,
                                        const ShardingArguments& arguments);
  ~Groups();
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;
  // Throws std::runtime_error inside a Session::OwnCall of this thread, which may be one of these groups.
  void Close();

  // The schedule, without the GIL. Raises the error of `call`.
  void Run(const std::function<absl::Status(ShardedGroups&)>& call);
  // The groups. Raises RuntimeError if they or their session are closed.
  ShardedGroups& groups() const;

  // Addresses of the parameters of an unsharded group; 0 for a parameter of a sharded one.
  std::vector<uintptr_t> DataAddresses(int group) const;
  TorchTensor DataView(int group, int parameter);
  // A parameter's gradient to write: its address, 0 if there is none to be written; and the view.
  uintptr_t GradientAddress(int group, int parameter) const;
  TorchTensor GradientView(int group, int parameter);
  // True if the write must add to what an earlier one left. Marks the gradient as written.
  bool BeginGradientWrite(int group, int parameter);
  // This rank's pieces of a group's masters, by index of the parameter, one-dimensional. A parameter of which
  // the rank owns nothing is left out.
  std::vector<std::pair<int, TorchTensor>> Masters(int group);
  // The pieces' reduced gradients; None for a parameter without one.
  std::vector<std::pair<int, std::optional<TorchTensor>>> ReducedGradients(int group);
  // `parameters`: (group, index).
  void ForgetReducedGradients(const std::vector<std::pair<int, int>>& parameters);
  // `external`: (group, index, address). The norm of the gradients, and the factor that clips them.
  std::pair<double, double> ClipGradNorm(double max_norm, double norm_type,
                                         const std::vector<std::tuple<int, int, uintptr_t>>& external);

 private:
  // The groups, which end with the Groups or the session, whichever is first. Lives as long as both.
  class Owned;
  // Counts a call of the schedule.
  class CountedCall;

  Groups(std::shared_ptr<Session> session, std::string name,
         std::vector<std::vector<std::shared_ptr<Parameter>>> parameters);
  Parameter& At(int group, int parameter) const;
  int IndexOf(int group, const Parameter* parameter) const;
  void End();

  const std::shared_ptr<Session> session_;
  const std::vector<std::vector<std::shared_ptr<Parameter>>> parameters_;  // By group.
  const std::shared_ptr<Owned> owned_;
};

}  // namespace weft::python
