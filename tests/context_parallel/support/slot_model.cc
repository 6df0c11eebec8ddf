#include "tests/context_parallel/support/slot_model.h"

#include <utility>

#include <absl/strings/str_cat.h>

#include "weft/context_parallel/sequence_gather.h"
#include "weft/core/add_run.h"
#include "weft/core/status.h"
#include "weft/core/strided_copy.h"
#include "weft/memory/pool_tensor.h"
#include "weft/mesh/world_group.h"

namespace weft::testing {
namespace {

Tensor Converted(const Tensor& tensor, DType dtype) {
  Tensor converted = Tensor::Empty(dtype, tensor.shape());
  const absl::Status copied = StridedCopy(tensor.view(), converted.view());
  WEFT_CHECK(copied.ok(), ToStd(copied.message()));
  return converted;
}

// Adds `rows` rows of [heads * dim] each, per row of the batch: [batch, rows, heads, dim] to [batch, heads *
// dim].
template <typename Term>
std::vector<float> SumRows(const Tensor& tensor, const Term& term) {
  const int64_t rows = tensor.dim(1);
  const int64_t row = tensor.dim(2) * tensor.dim(3);
  std::vector<float> sums(static_cast<size_t>(tensor.dim(0) * row), 0.0F);
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    sums[static_cast<size_t>(i / (rows * row) * row + i % row)] += term(i);
  }
  return sums;
}

// Index into SumRows of an element of [batch, rows, heads, dim].
size_t SumIndex(const Tensor& tensor, int64_t element) {
  const int64_t row = tensor.dim(2) * tensor.dim(3);
  return static_cast<size_t>(element / (tensor.dim(1) * row) * row + element % row);
}

void AddTo(const Tensor& addend, const Tensor& sum) {
  AddRun(addend.view().data, addend.dtype(), sum.view().data, sum.dtype(), sum.elements());
}

constexpr Initializer kWeights = {Initializer::Kind::kNormal, 0.0F, 0.3F};

std::vector<Linear::Output> ProjectionOutputs(const SlotBlockOptions& options) {
  const int64_t features = options.heads * options.head_dim;
  if (options.is_fused) return {{"qk", 2 * features}};
  return {{"q", features}, {"k", features}};
}

}  // namespace

absl::Span<const std::string_view> SquareSum::input_names() const {
  static constexpr std::string_view kNames[] = {"q", "keys"};
  return kNames;
}

absl::StatusOr<Tensors> SquareSum::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  const Tensor q = Converted(inputs[0], DType::kF32);
  const Tensor keys = Converted(inputs[1], DType::kF32);
  const auto* k = keys.As<float>();
  const std::vector<float> sums = SumRows(keys, [&](int64_t i) { return factor_ * k[i] * k[i]; });
  for (int64_t i = 0; i < q.elements(); ++i) q.As<float>()[i] *= sums[SumIndex(q, i)];
  invocation.Save(this, {inputs[0], inputs[1]});
  return Tensors{Converted(q, inputs[0].dtype())};
}

absl::StatusOr<Tensors> SquareSum::BackwardImpl(Invocation& invocation, const Tensors& output_gradients) {
  const Tensors saved = invocation.PopSaved(this);
  const Tensor q = Converted(saved[0], DType::kF32);
  const Tensor keys = Converted(saved[1], DType::kF32);
  const Tensor dout = Converted(output_gradients[0], DType::kF32);
  const auto* k = keys.As<float>();
  const std::vector<float> sums = SumRows(keys, [&](int64_t i) { return factor_ * k[i] * k[i]; });
  const std::vector<float> weights =
      SumRows(q, [&](int64_t i) { return q.As<float>()[i] * dout.As<float>()[i]; });
  Tensors gradients;
  for (const Tensor& input : saved) {
    WEFT_ASSIGN_OR_RETURN(Tensor gradient, NewInputGradient(input.dtype(), input.shape()));
    gradients.push_back(std::move(gradient));
  }
  for (int64_t i = 0; i < q.elements(); ++i) dout.As<float>()[i] *= sums[SumIndex(q, i)];
  for (int64_t i = 0; i < keys.elements(); ++i) {
    keys.As<float>()[i] *= 2 * factor_ * weights[SumIndex(keys, i)];
  }
  WEFT_RETURN_IF_ERROR(StridedCopy(dout.view(), gradients[0].view()));
  WEFT_RETURN_IF_ERROR(StridedCopy(keys.view(), gradients[1].view()));
  return gradients;
}

SlotBlock::SlotBlock(std::string name, const SlotBlockOptions& options)
    : Module(std::move(name)), options_(options) {
  layer_ = AddChild(std::make_unique<Sequential>(absl::StrCat(this->name(), ".layer")));
  projection_ = &layer_->Add<Linear>("projection", options.dim, ProjectionOutputs(options), kWeights);
  for (int i = 0; i < options.consumers; ++i) {
    const std::string consumer = absl::StrCat(this->name(), ".consumer.", i);
    parents_.push_back(AddChild(std::make_unique<Parent>(
        consumer + ".parent", std::make_unique<SquareSum>(consumer, 0.5F + static_cast<float>(i)))));
    consumers_.push_back(&parents_.back()->child());
  }
}

ExchangeHooks::Slot SlotBlock::KeySlot() const {
  ExchangeHooks::Slot slot{.name = "keys", .source = {projection_}, .heads = options_.heads};
  const int64_t features = options_.heads * options_.head_dim;
  if (options_.is_fused) {
    slot.source.features = ExchangeSource::Features{features, features};
  } else {
    slot.source.output = 1;
  }
  return slot;
}

Tensors SlotBlock::HeadsOf(const Tensors& projected) const {
  const int64_t features = options_.heads * options_.head_dim;
  Tensors heads;
  for (size_t i = 0; i < 2; ++i) {
    const Tensor& whole = options_.is_fused ? projected[0] : projected[i];
    TensorView view = whole.view();
    if (options_.is_fused) view = view.Slice(2, static_cast<int64_t>(i) * features, features);
    view.shape = {view.shape[0], view.shape[1], options_.heads, options_.head_dim};
    view.strides = {view.strides[0], view.strides[1], options_.head_dim, 1};
    heads.push_back(whole.Window(view));
  }
  return heads;
}

absl::StatusOr<Tensors> SlotBlock::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  WEFT_ASSIGN_OR_RETURN(const Tensors projected, layer_->Forward(invocation, inputs));
  const Tensors heads = HeadsOf(projected);
  Tensor sum;
  for (size_t i = 0; i < consumers_.size(); ++i) {
    Tensors taken = heads;
    if (before_) WEFT_RETURN_IF_ERROR(before_(invocation, i, taken));
    WEFT_ASSIGN_OR_RETURN(const Tensors outputs, parents_[i]->Forward(invocation, taken));
    if (sum.defined()) {
      AddTo(outputs[0], sum);
    } else {
      sum = outputs[0];
    }
  }
  return Tensors{sum.Reshape({sum.dim(0), sum.dim(1), options_.heads * options_.head_dim})};
}

absl::StatusOr<Tensors> SlotBlock::BackwardImpl(Invocation& invocation, const Tensors& output_gradients) {
  const Tensor& dy = output_gradients[0];
  const Tensor dout = dy.Reshape({dy.dim(0), dy.dim(1), options_.heads, options_.head_dim});
  Tensors projected;
  for (const Linear::Output& output : ProjectionOutputs(options_)) {
    projected.push_back(Tensor::Zeros(dy.dtype(), {dy.dim(0), dy.dim(1), output.features}));
  }
  Tensors sums;
  for (size_t i = consumers_.size(); i-- > 0;) {
    if (left_out_ == i) {
      invocation.PopSaved(consumers_[i]);
      continue;
    }
    WEFT_ASSIGN_OR_RETURN(const Tensors gradients, parents_[i]->Backward(invocation, {dout}));
    if (sums.empty()) {
      sums = {gradients[0].Copy(), gradients[1].Copy()};
    } else {
      for (size_t j = 0; j < sums.size(); ++j) AddTo(gradients[j], sums[j]);
    }
  }
  const Tensors places = HeadsOf(projected);
  for (size_t j = 0; j < sums.size(); ++j) {
    WEFT_RETURN_IF_ERROR(StridedCopy(sums[j].view(), places[j].view()));
  }
  return layer_->Backward(invocation, std::move(projected));
}

absl::StatusOr<std::unique_ptr<SlotModel>> SlotModel::Make(Bootstrap& bootstrap,
                                                           const SlotBlockOptions& options) {
  std::unique_ptr<SlotModel> model(new SlotModel(bootstrap));
  WEFT_ASSIGN_OR_RETURN(model->fixture_, EngineFixture::Make(bootstrap));
  WEFT_ASSIGN_OR_RETURN(
      model->exchange_,
      SequenceExchange::Create(*model->fixture_.engine, *model->fixture_.pool, WorldGroup(bootstrap)));
  model->model_ = std::make_unique<BlockModel<SlotBlock>>(options);
  model->hooks_ = std::make_unique<ExchangeHooks>();
  return model;
}

absl::StatusOr<std::unique_ptr<SlotModel>> SlotModel::Make(Bootstrap& bootstrap,
                                                           const SlotBlockOptions& options, bool has_source) {
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<SlotModel> model, Make(bootstrap, options));
  ExchangeHooks::Slot slot = model->block().KeySlot();
  if (!has_source) slot.source = {};
  WEFT_RETURN_IF_ERROR(model->AddKeySlot(std::move(slot)));
  return model;
}

absl::Status SlotModel::AddKeySlot(ExchangeHooks::Slot slot) {
  if (slot.exchange == nullptr) slot.exchange = SequenceGather(*exchange_, slot.name);
  const std::string name = slot.name;
  WEFT_RETURN_IF_ERROR(hooks_->AddSlot(std::move(slot)));
  const TensorAllocator in_pool = [this](DType dtype, Shape shape) {
    return PoolTensor(*fixture_.pool, dtype, std::move(shape));
  };
  block().projection().SetResultAllocators({.outputs = in_pool, .input_gradients = {}});
  for (SquareSum* consumer : block().consumers()) {
    WEFT_RETURN_IF_ERROR(hooks_->AddConsumer(name, *consumer, "keys"));
    consumer->SetResultAllocators({.outputs = {}, .input_gradients = in_pool});
  }
  return absl::OkStatus();
}

absl::StatusOr<PassResult> SlotModel::Pass(const SequenceLayout& layout, const Tensor& x, const Tensor& dy,
                                           int calls) {
  const int rank = bootstrap_.rank();
  return model_->Pass(layout.Parts(rank), PartOf(x, layout, rank), PartOf(dy, layout, rank), calls);
}

SequenceLayout SlotLayout(int ranks) { return *SequenceLayout::HeadTail(kTokens, ranks); }

absl::StatusOr<PassResult> SlotPassWith(Bootstrap& bootstrap, const SlotBlockOptions& options,
                                        bool has_source, absl::FunctionRef<void(SlotModel&)> prepare) {
  WEFT_ASSIGN_OR_RETURN(const auto model, SlotModel::Make(bootstrap, options, has_source));
  prepare(*model);
  const SlotPair pair;
  WEFT_ASSIGN_OR_RETURN(PassResult result, model->Pass(SlotLayout(bootstrap.size()), pair.x, pair.dy));
  WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
  return result;
}

absl::Status CheckSlotAgainstOneRank(Bootstrap& bootstrap, const SlotBlockOptions& options, bool has_source,
                                     int calls) {
  const SlotPair pair;
  WEFT_ASSIGN_OR_RETURN(const PassResult expected,
                        BlockModel<SlotBlock>(options).Pass(nullptr, pair.x, pair.dy, calls));
  WEFT_ASSIGN_OR_RETURN(const auto model, SlotModel::Make(bootstrap, options, has_source));
  const SequenceLayout layout = SlotLayout(bootstrap.size());
  WEFT_ASSIGN_OR_RETURN(const PassResult result, model->Pass(layout, pair.x, pair.dy, calls));
  return CheckPass(bootstrap, has_source ? "from the source" : "in place", layout, result, expected);
}

}  // namespace weft::testing
