#include "python/bindings/custom_collectives.h"

#include <exception>
#include <memory>
#include <utility>

#include <absl/strings/str_cat.h>

#include "weft/core/status.h"

namespace nb = nanobind;

namespace weft::python {
namespace {

using SharedObject = std::shared_ptr<nb::object>;

// For calls of Python while an exception waits to be raised: it stays the one that is raised. REQUIRES: the
// GIL.
class BesidePendingException {
 public:
  BesidePendingException() { PyErr_Fetch(&type_, &value_, &traceback_); }
  ~BesidePendingException() { PyErr_Restore(type_, value_, traceback_); }
  BesidePendingException(const BesidePendingException&) = delete;
  BesidePendingException& operator=(const BesidePendingException&) = delete;

 private:
  PyObject *type_ = nullptr, *value_ = nullptr, *traceback_ = nullptr;
};

// May be copied and destroyed without the GIL.
SharedObject Share(nb::object object) {
  return {new nb::object(std::move(object)), [](nb::object* held) {
            const nb::gil_scoped_acquire acquired;
            delete held;
          }};
}

// Calls Python with the GIL. An exception becomes a Status, and the call that runs the schedule raises it.
// Calls nothing while an earlier exception waits to be raised.
template <typename Function>
absl::Status CallPython(const Function& function) {
  const nb::gil_scoped_acquire acquired;
  if (PyErr_Occurred() != nullptr) return absl::AbortedError("an earlier call of Python has failed");
  try {
    function();
    return absl::OkStatus();
  } catch (nb::python_error& error) {
    const absl::Status status = absl::AbortedError(error.what());
    error.restore();
    return status;
  }
}

// REQUIRES: the GIL. The memory belongs to the schedule.
TorchTensor TensorOf(const void* data, int64_t elements, DType dtype) {
  const auto size = static_cast<size_t>(elements);
  return {const_cast<void*>(data), 1, &size, nb::none(), nullptr, DLPackType(dtype)};
}

class PendingInPython final : public PendingCollective {
 public:
  explicit PendingInPython(SharedObject work) : work_(std::move(work)) {}
  // The buffers may be used until the work has ended, so it is waited for. Its result is of no use any more.
  ~PendingInPython() override {
    const nb::gil_scoped_acquire acquired;
    const BesidePendingException pending;
    if (work_ == nullptr) return;
    try {
      work_->attr("wait")();
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("a custom collective of a group that has failed");
    }
  }

  absl::Status Wait() override {
    if (work_ == nullptr) return absl::OkStatus();
    const SharedObject work = std::move(work_);
    return CallPython([&] { work->attr("wait")(); });
  }
  // A Work of PyTorch ends when the rank's buffers are free.
  absl::Status WaitReleased() override { return Wait(); }
  bool TestReleased() const override {
    const nb::gil_scoped_acquire acquired;
    const BesidePendingException pending;
    if (work_ == nullptr) return true;
    try {
      return nb::cast<bool>(work_->attr("is_completed")());
    } catch (const std::exception&) {
      return true;  // The error has ended the work, and wait() raises it.
    }
  }

 private:
  SharedObject work_;  // Null: has ended.
};

StartedCollective Start(const SharedObject& function, const void* output, int64_t outputs, const void* input,
                        int64_t inputs, DType dtype) {
  SharedObject work;
  WEFT_RETURN_IF_ERROR(CallPython([&] {
    nb::object started = (*function)(TensorOf(output, outputs, dtype), TensorOf(input, inputs, dtype));
    if (!started.is_none()) work = Share(std::move(started));
  }));
  return std::make_unique<PendingInPython>(std::move(work));
}

}  // namespace

nb::dlpack::dtype DLPackType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return nb::dtype<float>();
    case DType::kF64:
      return nb::dtype<double>();
    case DType::kF16:
      return {static_cast<uint8_t>(nb::dlpack::dtype_code::Float), 16, 1};
    case DType::kBF16:
      return {static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat), 16, 1};
    default:
      WEFT_CHECK(false, "parameters have another dtype");
  }
  return {};
}

CustomAllGather AllGatherInPython(nb::object function) {
  if (function.is_none()) return nullptr;
  return [held = Share(std::move(function))](const AllGatherRequest& request) -> StartedCollective {
    return Start(held, request.gathered, request.gathered_elements, request.part,
                 request.gathered_elements / request.group.size(), request.dtype);
  };
}

CustomReduceScatter ReduceScatterInPython(nb::object function) {
  if (function.is_none()) return nullptr;
  return [held = Share(std::move(function))](const ReduceScatterRequest& request) -> StartedCollective {
    const int64_t part = request.counts.front();
    for (const int64_t count : request.counts) {
      if (count != part) {
        return absl::UnimplementedError(
            absl::StrCat("the gradients of '", request.label,
                         "' are reduced in unequal parts, which a custom reduce-scatter does not take"));
      }
    }
    return Start(held, request.output, part, request.input, part * request.group.size(), request.dtype);
  };
}

GradientHook GradientHookInPython(nb::object hook) {
  if (hook.is_none()) return nullptr;
  return [held = Share(std::move(hook))](const std::string&, const TensorView& shard) {
    return CallPython([&] { (*held)(TensorOf(shard.data, shard.elements(), shard.dtype)); });
  };
}

}  // namespace weft::python
