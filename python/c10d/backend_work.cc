#include "python/c10d/backend_work.h"

#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <string>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <utility>

#include "python/c10d/signals.h"
#include "python/interface/deadline.h"

namespace weft::python {
namespace {

// The error of an operation that was waited for until the timeout, or failed.
// REQUIRES: not OK.
std::exception_ptr ToException(const Outcome& outcome, std::chrono::milliseconds timeout) {
  std::string cause;
  if (outcome.code == Outcome::Code::kTimeout) {
    // Scripts look for these words, which errors of gloo have.
    cause = "Timed out waiting " + std::to_string(timeout.count()) + "ms: ";
  }
  try {
    C10_THROW_ERROR(DistBackendError, "weft: " + cause + outcome.message);
  } catch (...) {
    return std::current_exception();
  }
}

// The id of get_current_graph_task_id outside of a backward.
constexpr int kNoGraphTask = -1;

// Note [Futures in callbacks]
// Problem: one thread of the session runs the callbacks of futures. A callback that waits for another future,
//   as those of PowerSGD do, would wait for this thread.
// Rule: on this thread, getFuture waits for the operation, and returns a future that is complete.
// Why it suffices: the wait runs the engine, and ends at the deadline of the operation.
// Without it: DDP with such a hook hangs in its first backward.
thread_local bool runs_callbacks = false;

// The exception of a copy; null after a success.
std::exception_ptr ErrorOf(const std::function<void()>& copy_out) {
  const c10::InferenceMode guard;  // Writes tensors of inference, too, and records no gradient.
  try {
    copy_out();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

c10::intrusive_ptr<c10::ivalue::Future> MakeFuture() {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
}

}  // namespace

BackendWork::BackendWork(int rank, ::c10d::OpType type, const char* title,
                         const std::vector<at::Tensor>& inputs, Contents contents)
    : Work(rank, type, title, inputs), contents_(std::move(contents)) {}

bool BackendWork::wait(std::chrono::milliseconds timeout) {
  const auto limit = timeout == kNoTimeout ? contents_.timeout : timeout;
  const auto deadline = DeadlineAfter(limit);
  for (const auto& operation : contents_.operations) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    const Outcome outcome = WaitForSignalsToo(*operation, left);
    if (outcome.ok()) continue;
    const std::exception_ptr error = ToException(outcome, limit);
    if (outcome.code == Outcome::Code::kFailed) Complete(error);
    std::rethrow_exception(error);
  }
  Complete(nullptr);
  const std::lock_guard lock(mutex_);
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

void BackendWork::synchronize() { wait(kNoTimeout); }

void BackendWork::abort() {
  TORCH_CHECK(false,
              "weft: one operation cannot be aborted; abort its process group, which fails all operations");
}

bool BackendWork::isCompleted() {
  {
    const std::lock_guard lock(mutex_);
    if (completed_) return true;
  }
  for (const auto& operation : contents_.operations) {
    if (!operation->IsDone()) return false;
  }
  // PyTorch holds the interpreter's lock here. Waits for operations that are done do not run the engine.
  for (const auto& operation : contents_.operations) {
    const Outcome outcome = operation->Wait(std::chrono::milliseconds(0));
    if (outcome.code == Outcome::Code::kTimeout) return false;
    if (!outcome.ok()) {
      Complete(ToException(outcome, contents_.timeout));
      return true;
    }
  }
  for (const auto& work : contents_.earlier) {
    if (!work->isCompleted()) return false;
  }
  Complete(nullptr);
  return true;
}

bool BackendWork::isSuccess() const {
  const std::lock_guard lock(mutex_);
  return completed_ && !exception_;
}

int BackendWork::sourceRank() const { return contents_.operations.front()->Source(); }

void BackendWork::Complete(std::exception_ptr error) {
  // Not under completion_mutex_, as earlier works may have futures with callbacks, too.
  if (error == nullptr) error = CompleteEarlier();
  c10::intrusive_ptr<c10::ivalue::Future> future;
  // Destroyed without the mutex, as its tensors may take the interpreter's lock.
  std::function<void()> copy_out;
  {
    const std::lock_guard lock(completion_mutex_);
    if (is_complete_) return;
    copy_out = std::exchange(contents_.copy_out, nullptr);
    if (error == nullptr && copy_out) error = ErrorOf(copy_out);
    is_complete_ = true;
    future = future_;
    finish(error);
  }
  // Callbacks of the future may take the interpreter's lock, whose holder may wait for completion_mutex_.
  if (future) CompleteFuture(*future);
}

std::exception_ptr BackendWork::CompleteEarlier() {
  std::exception_ptr error;
  for (const auto& work : contents_.earlier) {
    try {
      work->wait();
    } catch (...) {
      error = std::current_exception();
    }
  }
  return error;
}

void BackendWork::CompleteFuture(c10::ivalue::Future& future) {
  std::exception_ptr error;
  {
    const std::lock_guard lock(mutex_);
    error = exception_;
  }
  SetFuture(future, error);
}

void BackendWork::SetFuture(c10::ivalue::Future& future, std::exception_ptr error) {
  if (is_future_set_.exchange(true)) return;
  if (error) {
    future.setError(error);
  } else {
    future.markCompleted(c10::IValue(contents_.outputs));
  }
}

// Note [Signals in DistributedDataParallel]
// Problem: DistributedDataParallel waits for the futures of its all-reduces in a callback at the end of
// backward, and a future notices no signals.
// Rule: a future that is taken in a backward queues a callback of its own, which waits for the operations.
// The future gets the exception of a signal handler as its error. Callbacks of later futures then wait no
// more.
// Why it suffices: callbacks run in the order in which they were queued, so these run first. The error
// reaches the caller from DistributedDataParallel, which stays usable.
void BackendWork::WaitAtTheEndOfBackward() {
  const int task = torch::autograd::get_current_graph_task_id();
  if (opType_ != ::c10d::OpType::ALLREDUCE || task == kNoGraphTask) return;
  auto self = c10::intrusive_ptr<BackendWork>::unsafe_reclaim_from_nonowning(this);
  torch::autograd::Engine::get_default_engine().queue_callback([self, task] {
    static thread_local int interrupted_task = kNoGraphTask;
    if (interrupted_task == task) return;
    try {
      for (const auto& operation : self->contents_.operations) {
        if (!WaitForSignalsToo(*operation, self->contents_.timeout).ok())
          return;  // The future has the error.
      }
    } catch (...) {
      interrupted_task = task;
      self->SetFuture(*self->future_, std::current_exception());
    }
  });
}

c10::intrusive_ptr<c10::ivalue::Future> BackendWork::getFuture() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  bool was_complete = false;
  {
    const std::lock_guard lock(completion_mutex_);
    if (future_) return future_;
    future = future_ = MakeFuture();
    was_complete = is_complete_;
  }
  if (was_complete) {
    CompleteFuture(*future);
  } else if (runs_callbacks) {  // See Note [Futures in callbacks].
    try {
      wait(kNoTimeout);
    } catch (...) {
      SetFuture(*future, std::current_exception());
    }
  } else {
    CompleteLater();
    WaitAtTheEndOfBackward();
  }
  return future;
}

void BackendWork::CompleteLater() {
  WhenAllDone([this](const Outcome& outcome) {
    const std::exception_ptr error = outcome.ok() ? nullptr : ToException(outcome, contents_.timeout);
    if (outcome.code == Outcome::Code::kTimeout) {
      SetFuture(*future_, error);  // The operation continues, and so does the work.
    } else {
      Complete(error);
    }
  });
}

void BackendWork::CopyOutLater() {
  WhenAllDone([this](const Outcome& outcome) {
    if (outcome.ok()) Complete(nullptr);
    if (outcome.code == Outcome::Code::kTimeout) CopyOutLater();  // The operation continues.
  });
}

void BackendWork::WhenAllDone(std::function<void(const Outcome&)> done) {
  struct Remaining {
    std::function<void(const Outcome&)> done;
    std::atomic<size_t> operations;
    std::mutex mutex;
    Outcome outcome;
  };
  auto remaining = std::make_shared<Remaining>();
  remaining->done = std::move(done);
  remaining->operations = contents_.operations.size();
  auto self = c10::intrusive_ptr<BackendWork>::unsafe_reclaim_from_nonowning(this);
  for (const auto& operation : contents_.operations) {
    operation->WhenDone(contents_.timeout, [self, remaining](const Outcome& outcome) {
      if (!outcome.ok()) {
        const std::lock_guard lock(remaining->mutex);
        if (remaining->outcome.code != Outcome::Code::kFailed) remaining->outcome = outcome;
      }
      if (--remaining->operations > 0) return;
      runs_callbacks = true;
      remaining->done(remaining->outcome);
      runs_callbacks = false;
    });
  }
}

void CopyingWorks::Add(const c10::intrusive_ptr<BackendWork>& work) {
  const std::lock_guard lock(mutex_);
  std::erase_if(works_, [](const auto& earlier) { return earlier.expired(); });
  works_.emplace_back(work);
}

std::vector<c10::intrusive_ptr<::c10d::Work>> CopyingWorks::All() {
  std::vector<c10::intrusive_ptr<::c10d::Work>> works;
  const std::lock_guard lock(mutex_);
  for (const auto& work : works_) {
    if (auto held = work.lock()) works.push_back(std::move(held));
  }
  return works;
}

}  // namespace weft::python
