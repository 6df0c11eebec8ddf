#include "python/bindings/array_collectives.h"

#include <memory>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "python/bindings/array_arguments.h"
#include "python/bindings/engine_group.h"
#include "python/bindings/errors.h"
#include "python/bindings/python_store.h"
#include "weft/comm/element_enums.h"
#include "weft/core/dtype_enum.h"

namespace nb = nanobind;

namespace weft::python {
namespace {

// Owner of arrays, which may be dropped on any thread.
template <typename... Arrays>
std::shared_ptr<void> Owner(const Arrays&... arrays) {
  using Held = std::tuple<Arrays...>;
  return std::shared_ptr<Held>(new Held(arrays...), [](Held* held) {
    const nb::gil_scoped_acquire locked;
    delete held;
  });
}

using OperationPtr = std::shared_ptr<Operation>;

OperationPtr AllGather(EngineGroup& group, const ConstArray& input, const Array& output,
                       const std::optional<std::vector<int64_t>>& counts) {
  CheckSameType(input, output);
  const DType type = TypeOf(output.dtype());
  CheckAligned(input, type);
  CheckAligned(output, type);
  const auto parts = PartCounts(group, static_cast<int64_t>(output.size()), counts);
  CheckPart(group, input.size(), parts);
  CheckPlace(group, BytesOf(input), BytesOf(output), parts);
  return group.AllGather({Stream::kAllGather, "all_gather", Owner(input, output)}, input.data(),
                         output.data(), type, parts);
}

OperationPtr ReduceScatter(EngineGroup& group, const ConstArray& input, const Array& output,
                           const std::string& reduction, const std::optional<std::vector<int64_t>>& counts) {
  CheckSameType(input, output);
  const auto parts = PartCounts(group, static_cast<int64_t>(input.size()), counts);
  CheckPart(group, output.size(), parts);
  CheckPlace(group, BytesOf(output), BytesOf(input), parts);
  const DType type = TypeOf(output.dtype());
  CheckAligned(input, type);
  CheckAligned(output, type);
  CheckReduction(ReductionOf(reduction), type);
  return group.ReduceScatter({Stream::kReduceScatter, "reduce_scatter", Owner(input, output)}, input.data(),
                             output.data(), type, ReductionOf(reduction), parts);
}

OperationPtr AllReduce(EngineGroup& group, const Array& array, const std::string& reduction) {
  const DType type = TypeOf(array.dtype());
  CheckAligned(array, type);
  CheckReduction(ReductionOf(reduction), type);
  return group.AllReduce({Stream::kAllReduce, "all_reduce", Owner(array)}, array.data(), array.data(), type,
                         ReductionOf(reduction), static_cast<int64_t>(array.size()));
}

OperationPtr Broadcast(EngineGroup& group, const Array& array, int root) {
  CheckRank(group, root, "root");
  const DType type = TypeOf(array.dtype());
  CheckAligned(array, type);
  return group.Broadcast({Stream::kOther, "broadcast", Owner(array)}, array.data(), type,
                         static_cast<int64_t>(array.size()), root);
}

OperationPtr Barrier(EngineGroup& group) { return group.Barrier({Stream::kOther, "barrier", nullptr}); }

// Returns the kind of a dtype that travels as bytes. `code` is that of DLPack 1.1, which older versions of
// nanobind do not name.
ElementKind KindOfBytes(uint8_t code) {
  switch (code) {
    case 10:
      return ElementKind::kFloat8E4M3Fn;
    case 11:
      return ElementKind::kFloat8E4M3Fnuz;
    case 12:
      return ElementKind::kFloat8E5M2;
    case 13:
      return ElementKind::kFloat8E5M2Fnuz;
    case 14:
      return ElementKind::kFloat8E8M0Fnu;
    case 17:
      return ElementKind::kFloat4E2M1Fn;
    default:
      return ElementKind::kBytes;
  }
}

// The elements of a message. Those of a dtype that the engine does not know travel in a form of the same
// size.
struct MessageElements {
  DType type;
  int64_t count;
  ElementKind kind = ElementKind::kPlain;
};

template <typename AnyArray>
MessageElements ElementsOf(const AnyArray& array) {
  nb::dlpack::dtype dtype = array.dtype();
  const auto size = static_cast<int64_t>(array.size());
  if (const auto type = KnownTypeOf(dtype)) return {*type, size};
  const auto code = static_cast<DTypeCode>(dtype.code);
  if (code == DTypeCode::Bool && dtype.bits == 8) return {DType::kU8, size, ElementKind::kBool};
  if (code == DTypeCode::UInt) {
    dtype.code = static_cast<uint8_t>(DTypeCode::Int);
    if (const auto type = KnownTypeOf(dtype)) return {*type, size, ElementKind::kUnsigned};
  }
  if (code == DTypeCode::Complex) {
    dtype.code = static_cast<uint8_t>(DTypeCode::Float);
    dtype.bits /= 2;
    if (const auto type = KnownTypeOf(dtype)) return {*type, 2 * size, ElementKind::kComplex};
  }
  return {DType::kU8, static_cast<int64_t>(array.nbytes()), KindOfBytes(dtype.code)};
}

OperationPtr Send(EngineGroup& group, const ConstArray& array, int to, int tag) {
  CheckRank(group, to, "receiver");
  const MessageElements elements = ElementsOf(array);
  CheckAligned(array, elements.type);
  return group.Send({Stream::kOther, "send", Owner(array), elements.kind}, array.data(), elements.type,
                    elements.count, to, tag);
}

OperationPtr Receive(EngineGroup& group, const Array& array, std::optional<int> source, int tag) {
  if (source) CheckRank(group, *source, "sender");
  const MessageElements elements = ElementsOf(array);
  CheckAligned(array, elements.type);
  return group.Receive({Stream::kOther, "receive", Owner(array), elements.kind}, array.data(), elements.type,
                       elements.count, source.value_or(GroupCollectives::kAnyRank), tag);
}

void WaitFor(Operation& operation, const Session& session, std::optional<double> timeout_s) {
  const auto timeout = timeout_s ? absl::Seconds(*timeout_s) : session.options().timeout;
  const Outcome outcome = WaitForSignalsToo(operation, absl::ToChronoMilliseconds(timeout));
  if (outcome.ok()) return;
  Raise(outcome.code == Outcome::Code::kTimeout ? absl::DeadlineExceededError(outcome.message)
                                                : absl::InternalError(outcome.message));
}

// An operation as Python sees it.
struct ArrayOperation {
  std::shared_ptr<Session> session;
  OperationPtr operation;
};

// How Python passes an argument of a function that submits an operation. Arrays are converted here, because
// nanobind's own error does not say what is wrong with one.
template <typename Argument>
struct Passed {
  using Type = Argument;
  static Argument Of(std::remove_reference_t<Argument>& passed) { return static_cast<Argument>(passed); }
};
template <>
struct Passed<const Array&> {
  using Type = nb::object;
  static Array Of(const nb::object& passed) { return ArrayOf<Array>(passed); }
};
template <>
struct Passed<const ConstArray&> {
  using Type = nb::object;
  static ConstArray Of(const nb::object& passed) { return ArrayOf<ConstArray>(passed); }
};

// Binds a function that submits an operation.
template <typename... Arguments>
auto Submitting(OperationPtr (*submit)(EngineGroup&, Arguments...)) {
  return [submit](EngineGroup& group, typename Passed<Arguments>::Type... arguments) {
    return ArrayOperation{group.session(), submit(group, Passed<Arguments>::Of(arguments)...)};
  };
}

nb::capsule GroupCapsule(const std::shared_ptr<EngineGroup>& group) {
  using Held = std::shared_ptr<GroupCollectives>;
  return nb::capsule(new Held(group), kGroupCapsule,
                     [](void* held) noexcept { delete static_cast<Held*>(held); });
}

std::shared_ptr<EngineGroup> MakeGroup(const std::shared_ptr<Session>& session, const std::string& name,
                                       const std::vector<int>& ranks, std::optional<double> timeout_s) {
  const absl::Duration longest = session->options().timeout;
  const absl::Duration timeout = timeout_s ? std::min(absl::Seconds(*timeout_s), longest) : longest;
  absl::StatusOr<std::shared_ptr<EngineGroup>> made;
  {
    const Session::OwnCall own_call;  // A signal handler that runs in it must not close the session.
    const nb::gil_scoped_release released;
    made = EngineGroup::Create(session, name, ranks, timeout);
  }
  RethrowPendingOf(session->store());
  return ValueOrRaise(std::move(made));
}

}  // namespace

void BindArrayCollectives(nb::module_& module) {
  nb::class_<ArrayOperation>(module, "Operation",
                             "An asynchronous collective. It holds its arrays until it is done.")
      .def(
          "wait",
          [](const ArrayOperation& self, std::optional<double> timeout_s) {
            WaitFor(*self.operation, *self.session, timeout_s);
          },
          nb::arg("timeout_s") = nb::none(),
          "Blocks until the results are valid and the arrays may be reused. Default: the session's "
          "timeout.\n"
          "\n"
          "Raises TimeoutError (names the ranks that are missing; the operation continues), "
          "RuntimeError (it failed).")
      .def_prop_ro(
          "source", [](const ArrayOperation& self) { return self.operation->Source(); },
          "Group rank of the sender, of a receive that is done; otherwise -1.")
      .def_prop_ro(
          "done", [](const ArrayOperation& self) { return self.operation->IsDone(); },
          "True if a wait would return at once. Does not block.");

  nb::class_<EngineGroup>(
      module, "Group",
      "Collectives of C-contiguous arrays that begin at a multiple of their element's size: numpy arrays, or "
      "others that\n"
      "support DLPack.\n"
      "\n"
      "All ranks of the group submit the same collectives in the same order. Arrays of "
      "`Session.allocate_bytes` are moved\n"
      "in place, others are staged through node memory. Reductions are \"sum\", \"average\", "
      "\"max\", \"min\", \"product\",\n"
      "\"bit_and\", \"bit_or\" and \"bit_xor\". An invalid argument raises ValueError or "
      "TypeError; nothing is sent then.")
      .def(nb::new_(&MakeGroup), nb::arg("session"), nb::arg("name"), nb::arg("ranks"),
           nb::arg("timeout_s") = nb::none(),
           "Forms the group of these ranks of the session, within `timeout_s`, at most the session's "
           "timeout, which is the\n"
           "default. Collective: the ranks of the group.\n"
           "\n"
           "Raises ValueError (this rank is no member; a rank that occurs twice or is out of range), "
           "TimeoutError (names the\n"
           "ranks that did not make the group).")
      .def_prop_ro("rank", &EngineGroup::rank, "This process's rank in the group.")
      .def_prop_ro("size", &EngineGroup::size, "Number of ranks of the group.")
      .def_prop_ro("name", &EngineGroup::name, "Name of the group, for messages.")
      .def_prop_ro("capsule", &GroupCapsule,
                   "The group for other extension modules: python/interface/group_collectives.h.")
      .def("all_gather", Submitting(&AllGather), nb::arg("input"), nb::arg("output"),
           nb::arg("counts") = nb::none(),
           "output = the elements of all inputs in rank order. `counts`: elements of each rank's "
           "input; default: equal.\n"
           "\n"
           "In place if `input` is this rank's part of `output`. Raises ValueError if they share memory "
           "otherwise.")
      .def("reduce_scatter", Submitting(&ReduceScatter), nb::arg("input"), nb::arg("output"),
           nb::arg("reduction") = "sum", nb::arg("counts") = nb::none(),
           "output = this rank's part of the reduction of all inputs. `counts`: elements of each "
           "rank's output; default:\n"
           "equal. In place if `output` is this rank's part of `input`. Raises ValueError if they share "
           "memory otherwise.")
      .def("all_reduce", Submitting(&AllReduce), nb::arg("array"), nb::arg("reduction") = "sum",
           "array = the reduction of all arrays.")
      .def("broadcast", Submitting(&Broadcast), nb::arg("array"), nb::arg("root") = 0,
           "array = the array of group rank `root`.")
      .def("barrier", Submitting(&Barrier), "Done when all ranks of the group have submitted it.")
      .def("send", Submitting(&Send), nb::arg("array"), nb::arg("to"), nb::arg("tag") = 0,
           "Sends the array to a rank of the group. Messages match by tag, in the order of submission.")
      .def("receive", Submitting(&Receive), nb::arg("array"), nb::arg("source") = nb::none(),
           nb::arg("tag") = 0,
           "Receives an array of this size and dtype from a rank of the group; None: from any.");
}

}  // namespace weft::python
