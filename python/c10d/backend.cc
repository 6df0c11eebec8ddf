#include "python/c10d/backend.h"

#include <numeric>
#include <utility>

#include "python/c10d/submission.h"

namespace weft::python {
namespace {

using TorchOp = ::c10d::OpType;

void CheckSingle(const std::vector<at::Tensor>& tensors, const char* operation) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "weft: ", operation, ": expected one tensor, got ", tensors.size());
}

void CheckListSize(size_t size, int expected, const char* operation, const char* what) {
  TORCH_CHECK_VALUE(size == static_cast<size_t>(expected), "weft: ", operation, ": expected ", expected, " ",
                    what, ", one for each rank, got ", size);
}

// A work without operations would have nothing to end with.
void CheckNotEmpty(const std::vector<at::Tensor>& tensors, const char* operation) {
  TORCH_CHECK_VALUE(!tensors.empty(), "weft: ", operation, ": expected one tensor or more, got none");
}

int64_t RowElements(const at::Tensor& tensor) {
  return tensor.dim() == 0 || tensor.size(0) == 0 ? 1 : tensor.numel() / tensor.size(0);
}

// Elements of each rank's part of a tensor that is split on dim 0. Without `splits`: equal parts.
std::vector<int64_t> SplitElements(const at::Tensor& tensor, const std::vector<int64_t>& splits, int ranks,
                                   const char* what) {
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  if (splits.empty()) {
    TORCH_CHECK_VALUE(rows % ranks == 0, "weft: all_to_all: dim 0 of the ", what, " has ", rows,
                      " rows, which do not divide among ", ranks, " ranks; give split sizes");
    return std::vector<int64_t>(static_cast<size_t>(ranks), tensor.numel() / ranks);
  }
  CheckListSize(splits.size(), ranks, "all_to_all", "split sizes");
  const int64_t total = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  TORCH_CHECK_VALUE(total == rows, "weft: all_to_all: the split sizes of the ", what, " add up to ", total,
                    ", its dim 0 has ", rows, " rows");
  std::vector<int64_t> elements;
  for (const int64_t split : splits) {
    TORCH_CHECK_VALUE(split >= 0, "weft: all_to_all: a split size of the ", what, " is negative");
    elements.push_back(split * RowElements(tensor));
  }
  return elements;
}

// The translation of std::bad_alloc to Python's MemoryError keeps the text.
class NoRoom final : public std::bad_alloc {
 public:
  explicit NoRoom(std::string text) : text_(std::move(text)) {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

std::shared_ptr<void> AllocateOrThrow(GroupCollectives& group, size_t bytes) {
  GroupCollectives::Allocation allocation = group.Allocate(bytes);
  if (allocation.is_full) throw NoRoom("weft: " + allocation.error);
  TORCH_CHECK(allocation.block != nullptr, "weft: ", allocation.error);
  return std::move(allocation.block);
}

}  // namespace

WeftBackend::WeftBackend(std::shared_ptr<GroupCollectives> group, Settings settings)
    : Backend(group->rank(), group->size()),
      group_(std::move(group)),
      settings_(std::move(settings)),
      timeout_ms_(settings_.timeout.count()),
      monitored_barrier_(settings_.store, settings_.store_prefix + "/monitored_barrier", getRank(),
                         getSize()) {
  init();
}

c10::intrusive_ptr<::c10d::Backend::Options> WeftBackend::getBackendOptions() {
  auto options = c10::make_intrusive<Options>("weft", std::chrono::milliseconds(timeout_ms_.load()));
  options->group_name = settings_.name;
  options->global_ranks_in_group = settings_.global_ranks;
  return options;
}

std::chrono::milliseconds WeftBackend::TimeoutOf(std::chrono::milliseconds requested) const {
  return requested.count() > 0 ? requested : std::chrono::milliseconds(timeout_ms_.load());
}

void WeftBackend::CheckRank(int64_t rank, const char* operation) const {
  TORCH_CHECK_VALUE(rank >= 0 && rank < getSize(), "weft: ", operation, ": ", rank,
                    " is not a rank of a group of ", getSize());
}

std::vector<int64_t> WeftBackend::EqualParts(int64_t count) const {
  return std::vector<int64_t>(static_cast<size_t>(getSize()), count);
}

WeftBackend::WorkPtr WeftBackend::broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& options) {
  CheckSingle(tensors, "broadcast");
  CheckRank(options.rootRank, "broadcast");
  Submission submission(*group_, copying_, Stream::kOther, "broadcast", tensors);
  const TensorData data = submission.InOut(tensors[0], "tensor");
  submission.Add(group_->Broadcast(submission.call(), data.data, data.type, data.count,
                                   static_cast<int>(options.rootRank)));
  return submission.Finish(TorchOp::BROADCAST, "weft:broadcast", TimeoutOf(options.timeout), ++sequence_);
}

WeftBackend::WorkPtr WeftBackend::allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& options) {
  CheckSingle(tensors, "all_reduce");
  Submission submission(*group_, copying_, Stream::kAllReduce, "all_reduce", tensors);
  submission.AllReduce(tensors[0], options.reduceOp);
  return submission.Finish(TorchOp::ALLREDUCE, "weft:all_reduce", TimeoutOf(options.timeout), ++sequence_);
}

WeftBackend::WorkPtr WeftBackend::allreduce_coalesced(Tensors& tensors,
                                                      const ::c10d::AllreduceCoalescedOptions& options) {
  CheckNotEmpty(tensors, "all_reduce_coalesced");
  Submission submission(*group_, copying_, Stream::kAllReduce, "all_reduce", tensors);
  for (const at::Tensor& tensor : tensors) submission.CheckAllReduce(tensor, options.reduceOp);
  for (at::Tensor& tensor : tensors) submission.AllReduce(tensor, options.reduceOp);
  return submission.Finish(TorchOp::ALLREDUCE_COALESCED, "weft:all_reduce", TimeoutOf(options.timeout),
                           ++sequence_);
}

// A reduction to one rank is a reduce-scatter in which this rank owns everything.
WeftBackend::WorkPtr WeftBackend::reduce(Tensors& tensors, const ::c10d::ReduceOptions& options) {
  CheckSingle(tensors, "reduce");
  CheckRank(options.rootRank, "reduce");
  const at::Tensor& tensor = tensors[0];
  Submission submission(*group_, copying_, Stream::kOther, "reduce", tensors);
  CheckTensor(tensor, "reduce", "tensor");
  const ReduceOp reduction = ReductionOf(options.reduceOp, tensor.scalar_type());
  const TensorData input = submission.Input(ScaledInput(tensor, options.reduceOp), "tensor");
  std::vector<int64_t> counts = EqualParts(0);
  counts[static_cast<size_t>(options.rootRank)] = input.count;
  void* const output = getRank() == options.rootRank ? submission.Output(tensor, "tensor").data : nullptr;
  submission.Add(group_->ReduceScatter(submission.call(), input.data, output, input.type, reduction, counts));
  return submission.Finish(TorchOp::REDUCE, "weft:reduce", TimeoutOf(options.timeout), ++sequence_);
}

WeftBackend::WorkPtr WeftBackend::allgather(TensorLists& outputs, Tensors& inputs,
                                            const ::c10d::AllgatherOptions& options) {
  CheckSingle(inputs, "all_gather");
  TORCH_CHECK_VALUE(outputs.size() == 1, "weft: all_gather: expected one list of outputs, got ",
                    outputs.size());
  Submission submission(*group_, copying_, Stream::kAllGather, "all_gather", outputs[0]);
  submission.GatherParts(inputs[0], outputs[0], /*root=*/-1);
  return submission.Finish(TorchOp::ALLGATHER, "weft:all_gather", TimeoutOf(options.timeout), ++sequence_);
}

WeftBackend::WorkPtr WeftBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                  const ::c10d::AllgatherOptions& options) {
  Submission submission(*group_, copying_, Stream::kAllGather, "all_gather", {output});
  submission.AllGather(output, input);
  return submission.Finish(TorchOp::_ALLGATHER_BASE, "weft:_all_gather_base", TimeoutOf(options.timeout),
                           ++sequence_);
}

WeftBackend::WorkPtr WeftBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                                      const ::c10d::AllgatherOptions& options) {
  CheckNotEmpty(inputs, "all_gather_coalesced");
  CheckListSize(outputs.size(), getSize(), "all_gather_coalesced", "lists of outputs");
  Tensors results;
  for (const Tensors& list : outputs) {
    TORCH_CHECK_VALUE(list.size() == inputs.size(), "weft: all_gather_coalesced: ", inputs.size(),
                      " inputs, but a list of ", list.size(), " outputs");
    results.insert(results.end(), list.begin(), list.end());
  }
  Submission submission(*group_, copying_, Stream::kAllGather, "all_gather", results);
  std::vector<Tensors> parts(inputs.size());
  for (size_t index = 0; index < inputs.size(); ++index) {
    for (const Tensors& list : outputs) parts[index].push_back(list[index]);
    submission.CheckParts(inputs[index], parts[index]);
  }
  for (size_t index = 0; index < inputs.size(); ++index) {
    submission.GatherParts(inputs[index], parts[index], /*root=*/-1);
  }
  return submission.Finish(TorchOp::ALLGATHER_COALESCED, "weft:all_gather", TimeoutOf(options.timeout),
                           ++sequence_);
}

WeftBackend::WorkPtr WeftBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                  const ::c10d::AllgatherOptions& options) {
  CheckNotEmpty(inputs, "all_gather");
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "weft: all_gather: ", inputs.size(), " inputs for ",
                    outputs.size(), " outputs");
  Submission submission(*group_, copying_, Stream::kAllGather, "all_gather", outputs);
  for (size_t index = 0; index < inputs.size(); ++index) {
    submission.CheckAllGather(outputs[index], inputs[index]);
  }
  for (size_t index = 0; index < inputs.size(); ++index) submission.AllGather(outputs[index], inputs[index]);
  return submission.Finish(TorchOp::ALLGATHER, "weft:all_gather", TimeoutOf(options.timeout), ++sequence_);
}

WeftBackend::WorkPtr WeftBackend::gather(TensorLists& outputs, Tensors& inputs,
                                         const ::c10d::GatherOptions& options) {
  CheckSingle(inputs, "gather");
  CheckRank(options.rootRank, "gather");
  const bool is_root = getRank() == options.rootRank;
  TORCH_CHECK_VALUE(outputs.size() == (is_root ? 1U : 0U), "weft: gather: the root, rank ", options.rootRank,
                    ", gives one list of outputs and the other ranks none; got ", outputs.size());
  Submission submission(*group_, copying_, Stream::kOther, "gather", is_root ? outputs[0] : Tensors{});
  submission.GatherParts(inputs[0], is_root ? outputs[0] : Tensors{}, static_cast<int>(options.rootRank));
  return submission.Finish(TorchOp::GATHER, "weft:gather", TimeoutOf(options.timeout), ++sequence_);
}

WeftBackend::WorkPtr WeftBackend::scatter(Tensors& outputs, TensorLists& inputs,
                                          const ::c10d::ScatterOptions& options) {
  CheckSingle(outputs, "scatter");
  CheckRank(options.rootRank, "scatter");
  const bool is_root = getRank() == options.rootRank;
  TORCH_CHECK_VALUE(inputs.size() == (is_root ? 1U : 0U), "weft: scatter: the root, rank ", options.rootRank,
                    ", gives one list of inputs and the other ranks none; got ", inputs.size());
  Submission submission(*group_, copying_, Stream::kOther, "scatter", outputs);
  submission.ScatterParts(is_root ? inputs[0] : Tensors{}, outputs[0], static_cast<int>(options.rootRank));
  return submission.Finish(TorchOp::SCATTER, "weft:scatter", TimeoutOf(options.timeout), ++sequence_);
}

WeftBackend::WorkPtr WeftBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                                 const ::c10d::ReduceScatterOptions& options) {
  CheckSingle(outputs, "reduce_scatter");
  TORCH_CHECK_VALUE(inputs.size() == 1, "weft: reduce_scatter: expected one list of inputs, got ",
                    inputs.size());
  CheckListSize(inputs[0].size(), getSize(), "reduce_scatter", "inputs");
  Submission submission(*group_, copying_, Stream::kReduceScatter, "reduce_scatter", outputs);
  std::vector<int64_t> numels;
  for (size_t rank = 0; rank < inputs[0].size(); ++rank) {
    CheckTensor(inputs[0][rank], "reduce_scatter", Numbered("input", rank));
    CheckSameDtype(inputs[0][rank], outputs[0], "reduce_scatter");
    numels.push_back(inputs[0][rank].numel());
  }
  const int64_t total = std::accumulate(numels.begin(), numels.end(), int64_t{0});
  at::Tensor joined = AllocateOrEmpty(total, outputs[0].options());
  int64_t start = 0;
  for (const at::Tensor& input : inputs[0]) {
    const at::NoGradGuard guard;
    joined.narrow(0, start, input.numel()).copy_(input.reshape({-1}));
    start += input.numel();
  }
  submission.ReduceScatter(outputs[0], joined, numels, options.reduceOp);
  return submission.Finish(TorchOp::REDUCE_SCATTER, "weft:reduce_scatter", TimeoutOf(options.timeout),
                           ++sequence_);
}

WeftBackend::WorkPtr WeftBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                       const ::c10d::ReduceScatterOptions& options) {
  Submission submission(*group_, copying_, Stream::kReduceScatter, "reduce_scatter", {output});
  submission.ReduceScatter(output, input, EqualParts(output.numel()), options.reduceOp);
  return submission.Finish(TorchOp::_REDUCE_SCATTER_BASE, "weft:_reduce_scatter_base",
                           TimeoutOf(options.timeout), ++sequence_);
}

WeftBackend::WorkPtr WeftBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const ::c10d::ReduceScatterOptions& options) {
  CheckNotEmpty(inputs, "reduce_scatter");
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "weft: reduce_scatter: ", inputs.size(), " inputs for ",
                    outputs.size(), " outputs");
  Submission submission(*group_, copying_, Stream::kReduceScatter, "reduce_scatter", outputs);
  for (size_t index = 0; index < inputs.size(); ++index) {
    submission.CheckReduceScatter(outputs[index], inputs[index], EqualParts(outputs[index].numel()),
                                  options.reduceOp);
  }
  for (size_t index = 0; index < inputs.size(); ++index) {
    submission.ReduceScatter(outputs[index], inputs[index], EqualParts(outputs[index].numel()),
                             options.reduceOp);
  }
  return submission.Finish(TorchOp::REDUCE_SCATTER_TENSOR_COALESCED, "weft:reduce_scatter",
                           TimeoutOf(options.timeout), ++sequence_);
}

WeftBackend::WorkPtr WeftBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                std::vector<int64_t>& output_splits,
                                                std::vector<int64_t>& input_splits,
                                                const ::c10d::AllToAllOptions& options) {
  Submission submission(*group_, copying_, Stream::kOther, "all_to_all", {output});
  CheckTensor(input, "all_to_all", "input");
  CheckTensor(output, "all_to_all", "output");
  submission.Exchange(input, SplitElements(input, input_splits, getSize(), "input"), output,
                      SplitElements(output, output_splits, getSize(), "output"));
  return submission.Finish(TorchOp::ALLTOALL_BASE, "weft:all_to_all", TimeoutOf(options.timeout),
                           ++sequence_);
}

WeftBackend::WorkPtr WeftBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                           const ::c10d::AllToAllOptions& options) {
  CheckListSize(outputs.size(), getSize(), "all_to_all", "outputs");
  CheckListSize(inputs.size(), getSize(), "all_to_all", "inputs");
  Submission submission(*group_, copying_, Stream::kOther, "all_to_all", outputs);
  submission.ExchangeParts(inputs, outputs);
  return submission.Finish(TorchOp::ALLTOALL, "weft:all_to_all", TimeoutOf(options.timeout), ++sequence_);
}

WeftBackend::WorkPtr WeftBackend::send(Tensors& tensors, int to, int tag) {
  CheckSingle(tensors, "send");
  CheckRank(to, "send");
  Submission submission(*group_, copying_, Stream::kOther, "send", tensors);
  const TensorData data = submission.Input(tensors[0], "tensor");
  submission.Add(group_->Send(submission.call(), data.data, data.type, data.count, to, tag));
  return submission.Finish(TorchOp::SEND, "weft:send", TimeoutOf({}), sequence_);
}

WeftBackend::WorkPtr WeftBackend::Receive(Tensors& tensors, int from, int tag, TorchOp type,
                                          const char* title) {
  CheckSingle(tensors, "recv");
  Submission submission(*group_, copying_, Stream::kOther, "recv", tensors);
  const TensorData data = submission.Output(tensors[0], "tensor");
  submission.Add(group_->Receive(submission.call(), data.data, data.type, data.count, from, tag));
  return submission.Finish(type, title, TimeoutOf({}), sequence_);
}

WeftBackend::WorkPtr WeftBackend::recv(Tensors& tensors, int from, int tag) {
  CheckRank(from, "recv");
  return Receive(tensors, from, tag, TorchOp::RECV, "weft:recv");
}

WeftBackend::WorkPtr WeftBackend::recvAnysource(Tensors& tensors, int tag) {
  return Receive(tensors, GroupCollectives::kAnyRank, tag, TorchOp::RECVANYSOURCE, "weft:recvAnySource");
}

WeftBackend::WorkPtr WeftBackend::barrier(const ::c10d::BarrierOptions& options) {
  Submission submission(*group_, copying_, Stream::kOther, "barrier", {});
  submission.Barrier();
  return submission.Finish(TorchOp::BARRIER, "weft:barrier", TimeoutOf(options.timeout), ++sequence_);
}

void WeftBackend::monitoredBarrier(const ::c10d::BarrierOptions& options, bool wait_all_ranks) {
  const bool is_set = options.timeout != ::c10d::kUnsetTimeout;
  monitored_barrier_.Wait(is_set ? options.timeout : std::chrono::milliseconds(timeout_ms_), wait_all_ranks);
}

at::Tensor WeftBackend::allocateTensor(long size, at::TensorOptions options) {
  TORCH_CHECK_VALUE(size >= 0, "weft: a tensor of ", size, " elements");
  TORCH_CHECK_VALUE(options.device().is_cpu(), "weft: node memory is on the CPU, not on ", options.device());
  const size_t bytes = static_cast<size_t>(size) * options.dtype().itemsize();
  std::shared_ptr<void> block = AllocateOrThrow(*group_, bytes);
  void* const data = block.get();
  return at::from_blob(
      data, {static_cast<int64_t>(size)}, [block = std::move(block)](void*) mutable { block.reset(); },
      options.requires_grad(false));
}

at::Tensor WeftBackend::AllocateOrEmpty(int64_t size, const at::TensorOptions& options) {
  try {
    return allocateTensor(static_cast<long>(size), options);
  } catch (const std::bad_alloc&) {
    return at::empty({size}, options.requires_grad(false));
  }
}

void WeftBackend::abort() {
  group_->Abort("group " + settings_.name + ": rank " + std::to_string(getRank()) +
                " aborted its process group");
}

void WeftBackend::shutdown() {
  if (settings_.closes_session) group_->CloseSession();
}

}  // namespace weft::python
