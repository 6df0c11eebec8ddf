#include "src/train/planner/context_replay.h"

#include <algorithm>
#include <utility>

#include "src/train/plan/memory_need.h"
#include "src/train/planner/replay_sizes.h"
#include "weft/core/rounding.h"
#include "weft/core/status.h"

namespace weft {
namespace {

struct ScaledSizes {
  LlamaConfig model;
  int64_t seq_len;
};

ScaledSizes Scale(const ReplayInput& input, int64_t divisor) {
  ScaledSizes sizes{input.model, input.plan.seq_len};
  sizes.model.head_dim = std::max<int64_t>(1, input.model.head_dim / divisor);
  const int64_t shorter = std::max<int64_t>(1, divisor * sizes.model.head_dim / input.model.head_dim);
  const int64_t shortest = int64_t{2} * input.plan.context.size;  // Two chunks of each rank.
  sizes.seq_len = std::max(std::min(shortest, input.plan.seq_len), input.plan.seq_len / shorter);
  if (auto& window = sizes.model.traits.window) window = std::max<int64_t>(1, *window / shorter);
  return sizes;
}

// The largest of the bytes of all ranks, because the gathers of a replay have equal parts.
ContextCosts SparseCosts(const ReplayInput& input, const SequenceLayout& layout) {
  const AttentionShape shape =
      ShapeOfAttention(input.model, input.plan.batch.sequences_per_rank(), input.plan.parallel.param_dtype);
  ContextCosts largest;
  for (int rank = 0; rank < input.plan.context.size; ++rank) {
    const ContextCosts costs = CostsOf(input.plan.context.scheme, shape,
                                       {.causal = true, .keys_before = std::nullopt}, layout, rank);
    largest.forward_bytes = std::max(largest.forward_bytes, costs.forward_bytes);
    largest.backward_bytes = std::max(largest.backward_bytes, costs.backward_bytes);
  }
  return largest;
}

// Elements of a gather that brings `bytes` to each rank.
int64_t GatherElements(const ReplayInput& input, int64_t divisor, int64_t bytes) {
  const int64_t ranks = input.plan.context.size;
  return CeilDiv(bytes / divisor, (ranks - 1) * kBytesOfElement) * ranks;
}

int64_t LargestGather(const ReplayInput& input, int64_t divisor, const ContextCosts& costs) {
  return GatherElements(input, divisor, std::max(costs.forward_bytes, costs.backward_bytes));
}

Tensor OneElement(DType dtype) { return Tensor::Zeros(dtype, {1}); }

}  // namespace

// The blocks below one root, which has the hooks for errors.
class ContextReplay::Blocks final : public Module {
 public:
  explicit Blocks(std::vector<std::unique_ptr<TimedBlock>> blocks) : Module("model") {
    for (auto& block : blocks) blocks_.push_back(AddChild(std::move(block)));
  }
  TimedBlock& at(int64_t layer) { return *blocks_[static_cast<size_t>(layer)]; }

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation&, const Tensors&) override { return NotCalled(); }
  absl::StatusOr<Tensors> BackwardImpl(Invocation&, const Tensors&) override { return NotCalled(); }

 private:
  static absl::Status NotCalled() { return absl::InternalError("a replay calls single blocks"); }

  std::vector<TimedBlock*> blocks_;
};

ContextReplay::ContextReplay(CommEngine& engine, const ReplayInput& input, int64_t divisor,
                             const PassTime& pass_time, SequenceLayout layout, int rank)
    : engine_(engine),
      input_(input),
      divisor_(divisor),
      pass_time_(pass_time),
      layout_(std::move(layout)),
      rank_(rank),
      share_(static_cast<double>(layout_.TokensOf(rank)) / static_cast<double>(layout_.tokens())),
      pool_(engine.heap(), "exchanges of a replay") {}

ContextReplay::~ContextReplay() = default;

absl::StatusOr<std::unique_ptr<ContextReplay>> ContextReplay::Create(CommEngine& engine,
                                                                     const ReplayInput& input,
                                                                     int64_t divisor,
                                                                     const PassTime& pass_time) {
  const ContextPlan& plan = input.plan.context;
  if (plan.size == 1) return nullptr;
  WEFT_ASSIGN_OR_RETURN(SequenceLayout layout, SequenceLayout::Create({input.plan.seq_len}, plan.split()));
  std::unique_ptr<ContextReplay> replay(new ContextReplay(
      engine, input, divisor, pass_time, std::move(layout), engine.bootstrap().rank() % plan.size));
  const ScaledSizes sizes = Scale(input, divisor);
  WEFT_RETURN_IF_ERROR(input.model.sparse_attention ? replay->CreateGathers()
                                                    : replay->CreateBlocks(sizes.model, sizes.seq_len));
  return replay;
}

absl::Status ContextReplay::CreateBlocks(const LlamaConfig& scaled, int64_t seq_len) {
  const ContextPlan& plan = input_.plan.context;
  WEFT_ASSIGN_OR_RETURN(const SequenceLayout layout, SequenceLayout::Create({seq_len}, plan.split()));
  parts_ = layout.Parts(rank_);
  const DType dtype = input_.plan.parallel.param_dtype;
  const PartShape unscaled = ShapeOfMicrobatch(input_.model, input_.plan, input_.threads);
  PartShape shape = unscaled;
  shape.seq_len = seq_len;  // Fewer pairs, which together take as long.
  const BlockTimes times =
      SplitTimes(input_.times[static_cast<size_t>(ModelPart::kBlock)], unscaled, shape, share_);
  std::vector<std::unique_ptr<TimedBlock>> blocks;
  for (int64_t layer = 0; layer < scaled.layers; ++layer) {
    blocks.push_back(std::make_unique<TimedBlock>(
        scaled, layer, Shape{input_.plan.batch.sequences_per_rank(), layout.TokensOf(rank_)}, dtype, times,
        pass_time_));
    blocks.back()->SetActivationCheckpointing(input_.plan.parallel.activation_checkpoint ==
                                              ActivationCheckpoint::kFull);
  }
  root_ = std::make_unique<Blocks>(std::move(blocks));
  WEFT_ASSIGN_OR_RETURN(context_,
                        ContextParallel::Create(engine_, *root_, input_.plan.mesh, {"context"}, plan.scheme));
  context_->SetKernels(TimedKernels(times.attention_pair, pass_time_));
  for (int64_t layer = 0; layer < scaled.layers; ++layer) {
    WEFT_RETURN_IF_ERROR(root_->at(layer).Split(*context_));
  }
  return absl::OkStatus();
}

absl::Status ContextReplay::CreateGathers() {
  WEFT_ASSIGN_OR_RETURN(const ProcessGroup group,
                        input_.plan.mesh.Group({"context"}, engine_.bootstrap().rank()));
  WEFT_ASSIGN_OR_RETURN(lane_, engine_.SharedLane(group, LanePurpose::kContext));
  gather_costs_ = SparseCosts(input_, layout_);
  const int64_t elements = LargestGather(input_, divisor_, gather_costs_);
  WEFT_ASSIGN_OR_RETURN(buffer_, pool_.Acquire(static_cast<size_t>(elements * kBytesOfElement)));
  return absl::OkStatus();
}

void ContextReplay::BeginPass() {
  invocation_ = std::make_unique<Invocation>();
  invocation_->SetSequence(parts_);
}

absl::Status ContextReplay::Forward(int64_t layer) {
  if (root_ == nullptr) return Gather(true);
  return root_->at(layer).Forward(*invocation_, {OneElement(input_.plan.parallel.param_dtype)}).status();
}

absl::Status ContextReplay::Backward(int64_t layer) {
  if (root_ == nullptr) return Gather(false);
  return root_->at(layer).Backward(*invocation_, {OneElement(input_.plan.parallel.param_dtype)}).status();
}

absl::Status ContextReplay::Gather(bool forward) {
  const int64_t elements =
      GatherElements(input_, divisor_, forward ? gather_costs_.forward_bytes : gather_costs_.backward_bytes);
  const int64_t own = elements / input_.plan.context.size * rank_;
  OpOptions options;
  options.label = "attention";
  options.priority = Priority::kCritical;
  Work work = engine_.AllGather(lane_, buffer_.data() + own * kBytesOfElement, buffer_.data(), DType::kF32,
                                elements, {}, options);
  WEFT_RETURN_IF_ERROR(work.WaitReleased());
  const PartTimes& times = input_.times[static_cast<size_t>(ModelPart::kBlock)];
  const bool recomputes = input_.plan.parallel.activation_checkpoint == ActivationCheckpoint::kFull;
  pass_time_(share_ * (forward ? times.forward_ns : times.backward_ns + (recomputes ? times.forward_ns : 0)));
  return absl::OkStatus();
}

size_t ContextReplay::peak_bytes() const {
  return context_ == nullptr ? pool_.peak_bytes() : context_->peak_buffer_bytes();
}

void ContextReplay::ResetPeak() {
  if (context_ != nullptr) context_->ResetPeak();
}

size_t ContextSegmentBytes(const ReplayInput& input, int64_t divisor) {
  const ContextPlan& plan = input.plan.context;
  if (plan.size == 1) return 0;
  if (input.model.sparse_attention) {
    const absl::StatusOr<SequenceLayout> layout = SequenceLayout::Create({input.plan.seq_len}, plan.split());
    WEFT_CHECK(layout.ok(), "the plan has a layout that cannot be created");
    const int64_t elements = LargestGather(input, divisor, SparseCosts(input, *layout));
    return static_cast<size_t>(elements * kBytesOfElement);
  }
  const ScaledSizes sizes = Scale(input, divisor);
  const LlamaConfig& model = sizes.model;
  const int64_t own = CeilDiv(sizes.seq_len, plan.size) + 1;
  // Local and exchanged tensors, with norms and query tails; keys and values of all ranks; log-sum-exps.
  const int64_t of_layer =
      model.head_dim * (6 * own * (model.heads + model.kv_heads) + 2 * sizes.seq_len * model.kv_heads) +
      2 * own * model.heads;
  constexpr int64_t kLayersOfBackward = 3;  // Gradients of a layer, and buffers on their way.
  const int64_t elements =
      input.plan.batch.sequences_per_rank() * (model.layers + kLayersOfBackward) * of_layer;
  return static_cast<size_t>(elements * kBytesOfElement);
}

}  // namespace weft
