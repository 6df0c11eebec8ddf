// One collective of the backend while it is submitted: checked tensors, temporary copies, engine operations.
//
//   Submission submission(group, Stream::kAllReduce, "all_reduce", outputs);
//   submission.AllReduce(tensor, op);  // May be called again: the operations of a coalesced collective.
//   return submission.Finish(...);
//
// All arguments are checked before the engine gets an operation: a failed check on one rank leaves the
// others with a missing operation at worst, not with a failed engine. A coalesced collective calls the
// Check functions for all of its tensors before it submits the first one.
#pragma once

#include <ATen/ATen.h>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "python/c10d/backend_work.h"
#include "python/c10d/tensor_data.h"
#include "python/interface/group_collectives.h"

namespace weft::python {

class Submission {
 public:
  using Tensors = std::vector<at::Tensor>;

  // `outputs`: the result of the work. `operation` is a literal. `copying` gets the works of collectives that
  // copy results.
  Submission(GroupCollectives& group, CopyingWorks& copying, Stream stream, const char* operation,
             Tensors outputs);

  // The elements of a tensor that the engine reads, writes, or both. A tensor that is not contiguous, or not
  // aligned, is represented by a copy; results are copied back when the work completes.
  TensorData Input(const at::Tensor& tensor, const std::string& what);
  TensorData Output(const at::Tensor& tensor, const std::string& what);
  TensorData InOut(const at::Tensor& tensor, const std::string& what);
  // An input that may share memory with `outputs`, which peers may fill before they have read the input: a
  // copy then represents it, unless it lies at `in_place`.
  TensorData InputBeside(const at::Tensor& tensor, const std::string& what, const Tensors& outputs,
                         const void* in_place);

  // Checks of the arguments of the functions below, which make them too. Raise ValueError.
  void CheckAllReduce(const at::Tensor& tensor, const ::c10d::ReduceOp& op) const;
  void CheckAllGather(const at::Tensor& output, const at::Tensor& input) const;
  void CheckReduceScatter(const at::Tensor& output, const at::Tensor& input,
                          const std::vector<int64_t>& numels, const ::c10d::ReduceOp& op) const;
  void CheckParts(const at::Tensor& input, const Tensors& outputs) const;

  // The collectives of one tensor.
  void AllReduce(const at::Tensor& tensor, const ::c10d::ReduceOp& op);
  void AllGather(const at::Tensor& output, const at::Tensor& input);
  // `numels`: elements of the part of each rank.
  void ReduceScatter(const at::Tensor& output, const at::Tensor& input, const std::vector<int64_t>& numels,
                     const ::c10d::ReduceOp& op);
  // Gathers the input of each rank in an output of its own, on `root` or on all ranks (-1). Ranks that
  // receive nothing have no outputs.
  void GatherParts(const at::Tensor& input, const Tensors& outputs, int root);
  void ScatterParts(const Tensors& inputs, const at::Tensor& output, int root);
  void ExchangeParts(const Tensors& inputs, const Tensors& outputs);
  void Exchange(const at::Tensor& input, const std::vector<int64_t>& input_numels, const at::Tensor& output,
                const std::vector<int64_t>& output_numels);

  // For operations that the functions above do not cover. The call holds the tensors of Input and Output so
  // far.
  GroupCollectives::Call call();
  void Add(std::shared_ptr<Operation> operation) { contents_.operations.push_back(std::move(operation)); }
  // A barrier in every stream. Completes all works so far.
  void Barrier();

  c10::intrusive_ptr<::c10d::Work> Finish(::c10d::OpType type, const char* title,
                                          std::chrono::milliseconds timeout, uint64_t sequence);

 private:
  bool ReceivesParts(int root) const { return root < 0 || root == group_.rank(); }

  GroupCollectives& group_;
  CopyingWorks& copying_;
  const Stream stream_;
  const char* const operation_;
  Tensors buffers_;                                        // Tensors that the engine accesses.
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // (output, temporary copy).
  BackendWork::Contents contents_;
};

}  // namespace weft::python
