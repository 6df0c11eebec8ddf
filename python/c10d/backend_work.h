// Handle of an asynchronous collective of the c10d backend.
//
// It is completed when its outputs are valid and its tensors may be reused. A missed deadline of wait()
// raises DistBackendError, and the operation continues: the message names the ranks that it waits for.
//
// Thread safety: any thread may call any member.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
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

 private:
  // Marks the work as completed, once. `error` is null after a success.
  void Complete(std::exception_ptr error);
  // Runs `copy_out`, once. Returns its exception, null after a success.
  std::exception_ptr CopyOut();
  void CompleteFuture(const c10::intrusive_ptr<c10::ivalue::Future>& future) const;
  // Makes the end of the backward under way wait for an all-reduce.
  // Note [Signals in DistributedDataParallel].
  void WaitAtTheEndOfBackward();
  // Completes the work when all operations are done, on a thread of the session.
  void CompleteLater();

  Contents contents_;
  std::mutex completion_mutex_;
  bool is_complete_ = false;                        // Guarded by completion_mutex_.
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // Guarded by completion_mutex_; set once.
};

}  // namespace weft::python
