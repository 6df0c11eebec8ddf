#include "python/c10d/submission.h"

#include <algorithm>
#include <numeric>

namespace weft::python {
namespace {

Part ToPart(const TensorData& data) { return {data.data, {data.count}, {1}}; }

// Contiguous parts of a tensor, end to end.
std::vector<Part> PartsOf(const at::Tensor& tensor, const TensorData& data,
                          const std::vector<int64_t>& numels) {
  const auto element_bytes = static_cast<int64_t>(tensor.element_size());
  std::vector<Part> parts;
  int64_t start = 0;
  for (const int64_t numel : numels) {
    parts.push_back({static_cast<char*>(data.data) + start * element_bytes,
                     {ElementsOf(tensor.scalar_type(), numel)},
                     {1}});
    start += numel;
  }
  return parts;
}

bool SharesMemory(const at::Tensor& tensor, const at::Tensor& other) {
  const auto* const begin = static_cast<const char*>(tensor.const_data_ptr());
  const auto* const other_begin = static_cast<const char*>(other.const_data_ptr());
  return begin < other_begin + other.nbytes() && other_begin < begin + tensor.nbytes();
}

// The elements from `first` on. REQUIRES: contiguous.
const void* PlaceIn(const at::Tensor& tensor, int64_t first) {
  return static_cast<const char*>(tensor.const_data_ptr()) +
         first * static_cast<int64_t>(tensor.element_size());
}

}  // namespace

Submission::Submission(GroupCollectives& group, CopyingWorks& copying, Stream stream, const char* operation,
                       Tensors outputs)
    : group_(group), copying_(copying), stream_(stream), operation_(operation) {
  contents_.outputs = std::move(outputs);
}

TensorData Submission::Input(const at::Tensor& tensor, const std::string& what) {
  CheckTensor(tensor, operation_, what);
  const at::NoGradGuard guard;
  buffers_.push_back(tensor.contiguous().resolve_conj().resolve_neg());
  if (!IsAligned(buffers_.back())) buffers_.back() = buffers_.back().clone();
  return DataOf(buffers_.back());
}

TensorData Submission::Output(const at::Tensor& tensor, const std::string& what) {
  CheckOutput(tensor, operation_, what);
  if (tensor.is_contiguous() && IsAligned(tensor) && !tensor.is_conj() && !tensor.is_neg()) {
    buffers_.push_back(tensor);
  } else {
    buffers_.push_back(at::empty(tensor.sizes(), tensor.options().requires_grad(false)));
    copies_.emplace_back(tensor, buffers_.back());
  }
  return DataOf(buffers_.back());
}

TensorData Submission::InOut(const at::Tensor& tensor, const std::string& what) {
  const TensorData data = Output(tensor, what);
  const at::NoGradGuard guard;
  if (!copies_.empty() && copies_.back().first.is_same(tensor)) copies_.back().second.copy_(tensor);
  return data;
}

TensorData Submission::InputBeside(const at::Tensor& tensor, const std::string& what, const Tensors& outputs,
                                   const void* in_place) {
  const TensorData data = Input(tensor, what);
  const at::Tensor& input = buffers_.back();
  const bool is_shared = std::any_of(outputs.begin(), outputs.end(), [&](const at::Tensor& output) {
    return output.is_contiguous() && SharesMemory(input, output);
  });
  if (!is_shared || data.data == in_place) return data;
  const at::NoGradGuard guard;
  buffers_.back() = input.clone();
  return DataOf(buffers_.back());
}

GroupCollectives::Call Submission::call() {
  const ElementKind elements =
      buffers_.empty() ? ElementKind::kPlain : ElementKindOf(buffers_.front().scalar_type());
  return {stream_, operation_, std::make_shared<Tensors>(buffers_), elements};
}

void Submission::CheckAllReduce(const at::Tensor& tensor, const ::c10d::ReduceOp& op) const {
  CheckOutput(tensor, operation_, "tensor");
  ReductionOf(op, tensor.scalar_type());
}

void Submission::AllReduce(const at::Tensor& tensor, const ::c10d::ReduceOp& op) {
  CheckAllReduce(tensor, op);
  const ReduceOp reduction = ReductionOf(op, tensor.scalar_type());
  buffers_.clear();
  TensorData input;
  TensorData output;
  if (op.op_ == ::c10d::ReduceOp::PREMUL_SUM) {
    input = Input(ScaledInput(tensor, op), "tensor");
    output = Output(tensor, "tensor");
  } else {
    input = output = InOut(tensor, "tensor");
  }
  Add(group_.AllReduce(call(), input.data, output.data, output.type, reduction, output.count));
}

void Submission::CheckAllGather(const at::Tensor& output, const at::Tensor& input) const {
  CheckTensor(input, operation_, "input");
  CheckOutput(output, operation_, "output");
  CheckSameDtype(input, output, operation_);
  CheckNumel(output, input.numel() * group_.size(), operation_, "output");
}

void Submission::AllGather(const at::Tensor& output, const at::Tensor& input) {
  CheckAllGather(output, input);
  buffers_.clear();
  const TensorData from =
      InputBeside(input, "input", {output}, PlaceIn(output, group_.rank() * input.numel()));
  const TensorData to = Output(output, "output");
  Add(group_.AllGather(call(), from.data, to.data, to.type,
                       std::vector<int64_t>(static_cast<size_t>(group_.size()), from.count)));
}

void Submission::CheckReduceScatter(const at::Tensor& output, const at::Tensor& input,
                                    const std::vector<int64_t>& numels, const ::c10d::ReduceOp& op) const {
  CheckTensor(input, operation_, "input");
  CheckOutput(output, operation_, "output");
  CheckSameDtype(input, output, operation_);
  CheckNumel(input, std::accumulate(numels.begin(), numels.end(), int64_t{0}), operation_, "input");
  CheckNumel(output, numels[static_cast<size_t>(group_.rank())], operation_, "output");
  ReductionOf(op, input.scalar_type());
}

void Submission::ReduceScatter(const at::Tensor& output, const at::Tensor& input,
                               const std::vector<int64_t>& numels, const ::c10d::ReduceOp& op) {
  CheckReduceScatter(output, input, numels, op);
  const ReduceOp reduction = ReductionOf(op, input.scalar_type());
  buffers_.clear();
  const int64_t first = std::accumulate(numels.begin(), numels.begin() + group_.rank(), int64_t{0});
  const void* const in_place = PlaceIn(output, -first);
  const TensorData from = InputBeside(ScaledInput(input, op), "input", {output}, in_place);
  const TensorData to = Output(output, "output");
  std::vector<int64_t> counts;
  for (const int64_t numel : numels) counts.push_back(ElementsOf(input.scalar_type(), numel));
  Add(group_.ReduceScatter(call(), from.data, to.data, to.type, reduction, counts));
}

void Submission::CheckParts(const at::Tensor& input, const Tensors& outputs) const {
  CheckTensor(input, operation_, "input");
  TORCH_CHECK_VALUE(outputs.size() == static_cast<size_t>(group_.size()), "weft: ", operation_, ": expected ",
                    group_.size(), " outputs, one for each rank, got ", outputs.size());
  for (size_t rank = 0; rank < outputs.size(); ++rank) {
    CheckOutput(outputs[rank], operation_, Numbered("output", rank));
    CheckSameDtype(outputs[rank], input, operation_);
  }
  CheckNumel(outputs[static_cast<size_t>(group_.rank())], input.numel(), operation_,
             "the output of this rank");
}

void Submission::GatherParts(const at::Tensor& input, const Tensors& outputs, int root) {
  CheckTensor(input, operation_, "input");
  if (ReceivesParts(root)) CheckParts(input, outputs);
  buffers_.clear();
  const void* const in_place =
      ReceivesParts(root) ? PlaceIn(outputs[static_cast<size_t>(group_.rank())], 0) : nullptr;
  const TensorData from = InputBeside(input, "input", outputs, in_place);
  std::vector<Part> sends(static_cast<size_t>(group_.size()));
  std::vector<Part> receives(static_cast<size_t>(group_.size()));
  for (size_t rank = 0; rank < sends.size(); ++rank) {
    if (root < 0 || static_cast<int>(rank) == root) sends[rank] = ToPart(from);
    if (ReceivesParts(root)) receives[rank] = ToPart(Output(outputs[rank], Numbered("output", rank)));
  }
  Add(group_.AllToAll(call(), from.type, sends, receives));
}

void Submission::ScatterParts(const Tensors& inputs, const at::Tensor& output, int root) {
  CheckTensor(output, operation_, "output");
  std::vector<Part> sends(static_cast<size_t>(group_.size()));
  std::vector<Part> receives(static_cast<size_t>(group_.size()));
  if (group_.rank() == root) {
    TORCH_CHECK_VALUE(inputs.size() == sends.size(), "weft: scatter: expected ", sends.size(),
                      " inputs, one for each rank, got ", inputs.size());
    CheckNumel(inputs[static_cast<size_t>(root)], output.numel(), operation_, "the input of this rank");
    for (size_t rank = 0; rank < sends.size(); ++rank) {
      CheckTensor(inputs[rank], operation_, Numbered("input", rank));
      CheckSameDtype(inputs[rank], output, operation_);
      const bool is_own = static_cast<int>(rank) == root;
      const void* const in_place = is_own ? PlaceIn(output, 0) : nullptr;
      sends[rank] = ToPart(InputBeside(inputs[rank], Numbered("input", rank), {output}, in_place));
    }
  }
  const TensorData to = Output(output, "output");
  receives[static_cast<size_t>(root)] = ToPart(to);
  Add(group_.AllToAll(call(), to.type, sends, receives));
}

void Submission::ExchangeParts(const Tensors& inputs, const Tensors& outputs) {
  std::vector<Part> sends;
  std::vector<Part> receives;
  for (size_t rank = 0; rank < inputs.size(); ++rank) {
    sends.push_back(ToPart(InputBeside(inputs[rank], Numbered("input", rank), outputs, nullptr)));
    receives.push_back(ToPart(Output(outputs[rank], Numbered("output", rank))));
    CheckSameDtype(inputs[rank], inputs[0], operation_);
    CheckSameDtype(outputs[rank], inputs[0], operation_);
  }
  const auto own = static_cast<size_t>(group_.rank());
  CheckNumel(outputs[own], inputs[own].numel(), operation_, "the output of this rank");
  Add(group_.AllToAll(call(), DTypeOf(inputs[0].scalar_type()), sends, receives));
}

void Submission::Exchange(const at::Tensor& input, const std::vector<int64_t>& input_numels,
                          const at::Tensor& output, const std::vector<int64_t>& output_numels) {
  CheckSameDtype(output, input, operation_);
  const auto own = static_cast<size_t>(group_.rank());
  TORCH_CHECK_VALUE(input_numels[own] == output_numels[own], "weft: ", operation_, ": rank ", own,
                    " sends itself ", input_numels[own], " elements, and expects ", output_numels[own]);
  const TensorData from = InputBeside(input, "input", {output}, nullptr);
  const TensorData to = Output(output, "output");
  Add(group_.AllToAll(call(), to.type, PartsOf(input, from, input_numels),
                      PartsOf(output, to, output_numels)));
}

// An operation of a stream starts when the earlier ones are *ready*. So after the barriers, all earlier
// collectives are *ready* on all ranks.
void Submission::Barrier() {
  contents_.earlier = copying_.All();
  for (const Stream stream :
       {Stream::kAllGather, Stream::kReduceScatter, Stream::kAllReduce, Stream::kOther}) {
    Add(group_.Barrier({stream, operation_, nullptr}));
  }
}

c10::intrusive_ptr<::c10d::Work> Submission::Finish(::c10d::OpType type, const char* title,
                                                    std::chrono::milliseconds timeout, uint64_t sequence) {
  const bool copies = !copies_.empty();
  if (copies) {
    contents_.copy_out = [copies = std::move(copies_)] {
      for (const auto& [output, copy] : copies) output.copy_(copy);
    };
  }
  contents_.timeout = timeout;
  contents_.sequence = sequence;
  Tensors inputs = contents_.outputs;
  auto work = c10::make_intrusive<BackendWork>(group_.rank(), type, title, inputs, std::move(contents_));
  if (copies) {
    const bool is_receive = type == ::c10d::OpType::RECV || type == ::c10d::OpType::RECVANYSOURCE;
    if (!is_receive) copying_.Add(work);
    work->CopyOutLater();
  }
  return work;
}

}  // namespace weft::python
