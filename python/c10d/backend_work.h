// Handle of an asynchronous collective of the c10d backend.
//
// It is completed when its outputs are valid and its tensors may be reused. A missed deadline of wait()
// raises DistBackendError, and the operation continues: the message names the ranks that it waits for.
//
// Note [Dropped works]
// Problem: the result of a non-contiguous output is copied to it from temporary memory. The caller may drop
//   the work, and wait for a barrier instead, or look at the output later.
// Rule: a thread of the session copies when the operations are done, and holds the work until then, also
//   after its deadline. A barrier completes all earlier works that still copy.
// Why it suffices: each copies once, under a mutex, for which the other waits.
// Without it: such an output never gets its result.
//
// Thread safety: any thread may call any member.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "python/interface/group_collectives.h"

namespace weft::python {

class BackendWork final : public ::c10d::Work {
 public:
  struct Contents {
    std::vector<std::shared_ptr<Operation>> operations;
    std::vector<at::Tensor> outputs;
    std::function<void()> copy_out;  // Moves results from temporary memory to the outputs. May be empty.
    // Works of earlier operations, which are done when `operations` are. They complete before this work.
    std::vector<c10::intrusive_ptr<::c10d::Work>> earlier;
    std::chrono::milliseconds timeout{0};
    uint64_t sequence = 0;
  };
  BackendWork(int rank, ::c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs,
              Contents contents);
  ~BackendWork() override = default;

  bool isCompleted() override;
  bool isSuccess() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override;
  void abort() override;
  std::vector<at::Tensor> result() override { return contents_.outputs; }
  int sourceRank() const override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return contents_.sequence; }

  // Completes the work on a thread of the session, also after its deadline, unless an operation fails.
  // Note [Dropped works].
  void CopyOutLater();

 private:
  // Marks the work as completed, once. `error` is null after a success.
  void Complete(std::exception_ptr error);
  // Completes earlier works. Returns an exception of them, null after a success.
  std::exception_ptr CompleteEarlier();
  // Sets the future to the result or the exception of the work. REQUIRES: the work is completed.
  void CompleteFuture(c10::ivalue::Future& future);
  // Sets the future and runs its callbacks, once: one thread may do so at the deadline while another one
  // completes the work. `error` is null after a success. REQUIRES: this thread holds no mutex.
  void SetFuture(c10::ivalue::Future& future, std::exception_ptr error);
  // Makes the end of the backward under way wait for an all-reduce.
  // Note [Signals in DistributedDataParallel].
  void WaitAtTheEndOfBackward();
  // Completes the work when all operations are done, on a thread of the session. At the deadline, only the
  // future fails. REQUIRES: future_ is set.
  void CompleteLater();
  // Calls `done` once on a thread of the session, which holds the work until then: with OK when all
  // operations are done, otherwise with a failure, or else a missed deadline, of one.
  void WhenAllDone(std::function<void(const Outcome&)> done);

  Contents contents_;
  std::mutex completion_mutex_;
  bool is_complete_ = false;                        // Guarded by completion_mutex_.
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // Guarded by completion_mutex_; set once.
  std::atomic<bool> is_future_set_ = false;         // SetFuture has been called.
};

// The works of a group's collectives that still copy results to their outputs.
//
// Thread safety: any thread may call any member.
class CopyingWorks {
 public:
  void Add(const c10::intrusive_ptr<BackendWork>& work);
  std::vector<c10::intrusive_ptr<::c10d::Work>> All();

 private:
  std::mutex mutex_;
  // A work is held until it has copied, by Note [Dropped works]. Guarded by mutex_.
  std::vector<c10::weak_intrusive_ptr<BackendWork>> works_;
};

}  // namespace weft::python
