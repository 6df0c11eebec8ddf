// Byte metrics of training steps, compared exactly with weft/sharding/byte_formulas.h.
#include <algorithm>
#include <numeric>

#include "src/train/data/batch_splitter.h"
#include "src/train/plan/context_plan.h"
#include "tests/train/train_run.h"
#include "weft/core/reproducible_sum.h"
#include "weft/nn/llama.h"
#include "weft/sharding/byte_formulas.h"
#include "weft/train/model_presets.h"

namespace weft {
namespace {

class Ledger : public TrainRun {
 protected:
  // Tests add wire_saved_bytes to wire_bytes.
  Ledger() { config_.parallel.wire_compression = WireCompression::kLossless; }

  StepShape ShapeOf(const Mesh& mesh, int ranks_per_node) const {
    StepShape shape;
    shape.shard_size = mesh.shard * mesh.context;
    shape.replicate_size = mesh.replicate;
    shape.microbatches = static_cast<int>(config_.data.grad_accum);
    shape.gradient_sync = config_.parallel.grad_sync;
    shape.ranks_per_node = ranks_per_node;
    return shape;
  }

  ShardingPolicy Policy() const {
    ShardingPolicy policy;
    policy.layout = FlatKindFor(config_.parallel.zero_copy);
    policy.node_shared = config_.parallel.node_shared;
    policy.reshard_after_forward = config_.parallel.reshard_after_forward;
    policy.shard_optimizer_over_replicas = config_.parallel.shard_optimizer_over_replicas;
    policy.param_dtype = config_.parallel.param_dtype;
    policy.reduce_dtype = config_.parallel.reduce_dtype;
    // Microbatches that are reduced at the end alone add up in fp32.
    if (config_.parallel.grad_sync == GradientSync::kLast && config_.data.grad_accum > 1)
      policy.gradient_dtype = DType::kF32;
    return policy;
  }

  FlatLayout LayoutOf(const std::vector<std::shared_ptr<Parameter>>& parameters, int shard_size) const {
    std::vector<FlatParameter> flat;
    for (const auto& parameter : parameters) {
      flat.push_back({.shape = parameter->shape, .trainable = parameter->requires_grad});
    }
    const bool narrow =
        SizeOf(config_.parallel.param_dtype) == 2 || SizeOf(config_.parallel.reduce_dtype) == 2;
    return FlatLayout::Make(FlatKindFor(config_.parallel.zero_copy), flat, shard_size, narrow ? 32 : 16)
        .value();
  }

  // Each unit of the model is a group, and the root's group has the other parameters.
  std::vector<FlatLayout> Layouts(const StepShape& shape) const {
    const auto model = LlamaModel::Create(MakeLlamaConfig(config_.model, config_.data.seq_len)).value();
    if (const auto lora = config_.lora.new_adapters()) {
      EXPECT_OK(AddLora(*model, *lora).status());
    }
    std::vector<std::shared_ptr<Parameter>> rest = model->AllParameters();
    std::vector<FlatLayout> layouts;
    for (Module* unit : model->units()) {
      const auto parameters = unit->AllParameters();
      layouts.push_back(LayoutOf(parameters, shape.shard_size));
      for (const auto& parameter : parameters) rest.erase(std::find(rest.begin(), rest.end(), parameter));
    }
    layouts.insert(layouts.begin(), LayoutOf(rest, shape.shard_size));
    return layouts;
  }

  StepCosts Expected(const StepShape& shape, const ShardingPolicy& policy) const {
    return CostsOfGroups(Layouts(shape), policy, shape);
  }

  // The costs of what a step does for the next one: gathers, if shard groups span nodes, and in place the
  // casts that AdamW writes with its updates.
  StepCosts DoneAhead(const StepShape& shape, const ShardingPolicy& policy) const {
    StepCosts ahead;
    const std::vector<FlatLayout> layouts = Layouts(shape);
    if (shape.residency == Residency::kInPlace && policy.param_dtype == DType::kBF16) {
      for (const FlatLayout& layout : layouts)
        ahead.copied_bytes += ForwardCostsOfGroup(layout, policy, shape).copied_bytes;
    }
    if (shape.shard_group_nodes() == 1) return ahead;
    for (size_t group = 0; group <= static_cast<size_t>(policy.PrefetchDepth()); ++group) {
      ahead += ForwardCostsOfGroup(layouts[group], policy, shape);
    }
    return ahead;
  }

  StepCosts ExpectedOfAllReduces(const StepShape& shape) {
    config_.parallel.shard_optimizer_over_replicas = false;
    const StepCosts costs = Expected(shape, Policy());
    config_.parallel.shard_optimizer_over_replicas = true;
    return costs;
  }

  // Runs on nodes of `ranks_per_node` ranks each; 0 means one node.
  void ExpectFormulas(const Mesh& mesh, int ranks_per_node = 0) {
    SCOPED_TRACE(absl::StrCat(mesh.replicate, "x", mesh.shard, "x", mesh.context, ", ", ranks_per_node,
                              " ranks a node"));
    const auto nodes =
        NodeMap::RanksPerNode(mesh.ranks(), ranks_per_node == 0 ? mesh.ranks() : ranks_per_node);
    StepShape shape = ShapeOf(mesh, ranks_per_node);
    const ShardingPolicy policy = ResolvePrefetch(Policy(), nodes, shape.shard_size);
    shape.residency =
        ChooseResidency(policy, *ChooseShareDomains(nodes, ShareDomain::kAuto), shape.shard_size)->residency;
    const StepCosts expected = Expected(shape, policy);
    const StepCosts ahead = DoneAhead(shape, policy);
    const Result result = Run(mesh, nodes);
    std::vector<int64_t> wire_of_steps;
    for (size_t step = 0; step < result.steps.size(); ++step) {
      // The first step does all of its own work, and work of the second step.
      const StepCosts first = step == 0 ? ahead : StepCosts();
      int64_t wire = 0;
      for (int r = 0; r < mesh.ranks(); ++r) {
        const std::vector<StepMetrics>& rank = result.by_rank[static_cast<size_t>(r)];
        EXPECT_EQ(rank[step].bytes.all_gather, expected.all_gather_bytes + first.all_gather_bytes);
        EXPECT_EQ(rank[step].bytes.reduce_scatter, expected.reduce_scatter_bytes);
        EXPECT_EQ(rank[step].bytes.all_reduce, expected.all_reduce_bytes);
        EXPECT_EQ(rank[step].bytes.context, ContextBytes(mesh, r % mesh.context));
        EXPECT_EQ(rank[step].copied_bytes, expected.copied_bytes + first.copied_bytes);
        wire += rank[step].wire_bytes + rank[step].wire_saved_bytes;
      }
      wire_of_steps.push_back(wire);
    }
    ExpectWireBytes(wire_of_steps, expected.wire_bytes, ahead.wire_bytes, shape);
  }

  // `ahead` is the number of bytes that a step sends for the next step. Timing decides how many of them are
  // sent before the step ends. Bytes that are sent between two steps count in neither.
  void ExpectWireBytes(const std::vector<int64_t>& wire_of_steps, int64_t expected, int64_t ahead,
                       const StepShape& shape) const {
    const auto steps = static_cast<int64_t>(wire_of_steps.size());
    const int64_t each = expected + ControlWireBytes(shape);
    if (ahead == 0) {
      EXPECT_THAT(wire_of_steps, ::testing::Each(each));
      return;
    }
    const int64_t sum = std::accumulate(wire_of_steps.begin(), wire_of_steps.end(), int64_t{0});
    const int64_t floor = steps * each;
    EXPECT_GE(sum, floor - (steps - 1) * ahead);
    EXPECT_LE(sum, floor + ahead);
  }

  // Bytes that attention brings to one of the ranks that share sequences, for these documents per microbatch.
  int64_t ContextBytes(const Mesh& mesh, int rank, const std::vector<int64_t>& documents,
                       int64_t batch) const {
    if (mesh.context == 1) return 0;
    const LlamaConfig model = MakeLlamaConfig(config_.model, config_.data.seq_len);
    const AttentionShape shape = {batch,          model.heads,    model.kv_heads,
                                  model.head_dim, model.head_dim, config_.parallel.param_dtype};
    ContextOptions options = config_.parallel.context;
    options.size = mesh.context;
    const ContextPlan plan = *PlanContext(options, shape, AttentionMask{}, config_.data.seq_len);
    const SequenceLayout layout = *SequenceLayout::Create(documents, plan.split());
    const ContextCosts costs = CostsOf(plan.scheme, shape, AttentionMask{}, layout, rank);
    const bool recomputed = config_.parallel.activation_checkpoint == ActivationCheckpoint::kFull;
    return model.layers * config_.data.grad_accum * (costs.bytes() + (recomputed ? costs.forward_bytes : 0));
  }
  int64_t ContextBytes(const Mesh& mesh, int rank) const {
    const int64_t data_parallel = int64_t{mesh.replicate} * mesh.shard;
    const int64_t batch = *config_.data.batch_size / (config_.data.grad_accum * data_parallel);
    return ContextBytes(mesh, rank, {config_.data.seq_len}, batch);
  }

  // The gather of step summaries, two words per rank, and the reduction of the gradient norm.
  static int64_t ControlWireBytes(const StepShape& shape) {
    return AllGatherWireBytes(int64_t{16} * shape.ranks(), shape.nodes()) +
           ReduceScatterWireBytes(sizeof(ReproducibleSum), shape.nodes()) +
           AllGatherWireBytes(sizeof(ReproducibleSum), shape.nodes());
  }

  // Wire bytes of one gather of the weights that other replicas updated, in fp32.
  int64_t UpdateWireBytes(const StepShape& shape) {
    StepShape once = shape;
    once.microbatches = 1;
    const int64_t reduced = ExpectedOfAllReduces(once).wire_bytes;
    return reduced / 2 * static_cast<int64_t>(sizeof(float) / SizeOf(config_.parallel.reduce_dtype));
  }
};

TEST_F(Ledger, MatchesTheFormulasOnEveryMesh) {
  config_.data.batch_size = 12;
  for (const Mesh mesh : {Mesh{1, 1}, Mesh{1, 2}, Mesh{1, 3}, Mesh{1, 4}, Mesh{2, 2}, Mesh{4, 1}}) {
    ExpectFormulas(mesh);
  }
}

TEST_F(Ledger, MatchesTheFormulasForEveryPolicy) {
  UseOddSizes();
  for (const bool zero_copy : {true, false}) {
    for (const bool reshard : {true, false}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        config_.parallel.node_shared = reshard ? NodeShared::kAuto : NodeShared::kOff;
        config_.parallel.zero_copy = zero_copy;
        config_.parallel.reshard_after_forward = reshard;
        config_.parallel.param_dtype = dtype;
        config_.parallel.reduce_dtype = dtype;
        ExpectFormulas({2, 2});
      }
    }
  }
}

TEST_F(Ledger, MatchesTheFormulasForEveryGradientSyncWithActivationCheckpoints) {
  config_.data.batch_size = 16;
  config_.data.grad_accum = 4;
  config_.parallel.activation_checkpoint = ActivationCheckpoint::kFull;
  for (const GradientSync sync : {GradientSync::kLast, GradientSync::kReduceScatter, GradientSync::kEach}) {
    config_.parallel.grad_sync = sync;
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      config_.parallel.param_dtype = dtype;
      config_.parallel.reduce_dtype = dtype;
      for (const Mesh mesh : {Mesh{1, 4}, Mesh{2, 2}, Mesh{4, 1}}) ExpectFormulas(mesh, 2);
    }
  }
}

// At its end a step gathers updates for the next step. The first step also gathers at its start, because it
// cannot know whether the shards of its replicas are equal.
TEST_F(Ledger, MatchesTheFormulasWithTheOptimizerShardedOverReplicas) {
  UseOddSizes();
  config_.data.batch_size = 8;
  config_.data.grad_accum = 2;
  config_.parallel.shard_optimizer_over_replicas = true;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    config_.parallel.param_dtype = config_.parallel.reduce_dtype = dtype;
    for (const Mesh mesh : {Mesh{2, 2}, Mesh{4, 1}}) {
      const NodeMap nodes = NodeMap::RanksPerNode(4, 2);
      const Result result = Run(mesh, nodes);
      std::vector<int64_t> wire_of_steps(result.steps.size());
      StepShape shape = ShapeOf(mesh, 2);
      shape.residency =
          ChooseResidency(Policy(), *ChooseShareDomains(nodes, ShareDomain::kAuto), mesh.shard)->residency;
      for (int r = 0; r < mesh.ranks(); ++r) {
        shape.shard_rank = r % mesh.shard;
        shape.replicate_rank = r / mesh.shard;
        const StepCosts expected = Expected(shape, Policy());
        const int64_t update_bytes = expected.all_gather_bytes - ExpectedOfAllReduces(shape).all_gather_bytes;
        for (const StepMetrics& step : result.by_rank[static_cast<size_t>(r)]) {
          EXPECT_EQ(step.bytes.all_gather, expected.all_gather_bytes + (step.step == 1 ? update_bytes : 0));
          EXPECT_EQ(step.bytes.reduce_scatter, expected.reduce_scatter_bytes);
          EXPECT_EQ(step.bytes.all_reduce, 0);
          EXPECT_EQ(step.copied_bytes, expected.copied_bytes);
          wire_of_steps[static_cast<size_t>(step.step) - 1] += step.wire_bytes + step.wire_saved_bytes;
        }
      }
      ExpectWireBytes(wire_of_steps, Expected(shape, Policy()).wire_bytes, UpdateWireBytes(shape), shape);
    }
  }
}

TEST_F(Ledger, MatchesTheFormulasBetweenTwoNodes) {
  UseOddSizes();
  for (const Mesh mesh : {Mesh{1, 4}, Mesh{2, 2}, Mesh{4, 1}}) ExpectFormulas(mesh, 2);
}

TEST_F(Ledger, MatchesTheFormulasWithOneRankPerNode) {
  for (const Mesh mesh : {Mesh{1, 4}, Mesh{2, 2}, Mesh{4, 1}}) ExpectFormulas(mesh, 1);
}

TEST_F(Ledger, MatchesTheFormulasWithSplitSequences) {
  config_.model.heads = 4;
  config_.model.kv_heads = 2;
  config_.data.seq_len = 19;
  config_.data.grad_accum = 2;
  for (const CpScheme scheme : {CpScheme::kUlysses, CpScheme::kGather, CpScheme::kRing, CpScheme::kHybrid}) {
    SCOPED_TRACE(Name(scheme));
    config_.parallel.context.scheme = scheme;
    ExpectFormulas({1, 1, 4});
    if (scheme == CpScheme::kHybrid) continue;
    config_.parallel.activation_checkpoint = ActivationCheckpoint::kFull;
    for (const Mesh mesh : {Mesh{1, 1, 2}, Mesh{1, 2, 2}, Mesh{2, 1, 2}}) ExpectFormulas(mesh);
    config_.parallel.activation_checkpoint = ActivationCheckpoint::kNone;
  }
}

TEST_F(Ledger, MatchesTheFormulasOfPackedDocuments) {
  config_.model.heads = 4;
  config_.model.kv_heads = 2;
  config_.data.document_separator = 'e';
  config_.data.shuffle = false;
  config_.optimizer.steps = 1;
  const std::string text = SomeText();
  const int64_t tokens = *config_.data.batch_size * config_.data.seq_len;
  const std::vector<int64_t> documents =
      DocumentLengths(std::vector<int32_t>(text.begin(), text.begin() + tokens), config_.data.seq_len, 'e');
  ASSERT_GT(documents.size(), 4);
  for (const CpScheme scheme : {CpScheme::kUlysses, CpScheme::kGather, CpScheme::kRing, CpScheme::kHybrid}) {
    SCOPED_TRACE(Name(scheme));
    config_.parallel.context.scheme = scheme;
    const Result result = Run({1, 1, 4});
    for (int rank = 0; rank < 4; ++rank) {
      const StepMetrics& step = result.by_rank[static_cast<size_t>(rank)].front();
      EXPECT_EQ(step.bytes.context, ContextBytes({1, 1, 4}, rank, documents, 1)) << "rank " << rank;
      EXPECT_EQ(step.copied_bytes, 0);
    }
  }
}

TEST_F(Ledger, ReducesAndHoldsGradientsOfAdaptersAlone) {
  config_.lora = {.rank = 2, .targets = "all-linear"};
  for (const Mesh mesh : {Mesh{1, 3}, Mesh{2, 2}}) {
    config_.data.batch_size = mesh.ranks();
    const Result result = Run(mesh);
    StepShape shape = ShapeOf(mesh, mesh.ranks());
    shape.residency =
        ChooseResidency(Policy(), *ChooseShareDomains(NodeMap::OneNode(mesh.ranks()), ShareDomain::kAuto),
                        mesh.shard)
            ->residency;
    int64_t image_elements = 0;
    for (const FlatLayout& layout : Layouts(shape)) image_elements += layout.gradient_image_elements();
    for (int r = 0; r < mesh.ranks(); ++r) {
      SCOPED_TRACE(absl::StrCat("rank ", r));
      shape.shard_rank = r % mesh.shard;
      shape.replicate_rank = r / mesh.shard;
      const StepCosts expected = Expected(shape, Policy());
      const StepMetrics& step = result.by_rank[static_cast<size_t>(r)].back();
      EXPECT_EQ(step.bytes.all_gather, expected.all_gather_bytes);
      EXPECT_EQ(step.bytes.reduce_scatter, expected.reduce_scatter_bytes);
      EXPECT_EQ(step.bytes.all_reduce, expected.all_reduce_bytes);
      EXPECT_GT(step.peak_bytes.gradients, 0);
      EXPECT_LE(step.peak_bytes.gradients, image_elements * static_cast<int64_t>(sizeof(float)));
    }
  }
}

TEST_F(Ledger, HasThePeakOfEveryPool) {
  config_.parallel.zero_copy = false;  // Then shards are not images.
  const StepMetrics step = Run({2, 1, 2}, NodeMap::RanksPerNode(4, 2)).steps.back();
  EXPECT_GT(step.peak_bytes.images, 0);
  EXPECT_GT(step.peak_bytes.gradients, 0);
  EXPECT_GT(step.peak_bytes.shards, 0);
  EXPECT_GT(step.peak_bytes.context, 0);
  EXPECT_GT(step.peak_bytes.scratch, 0);
  EXPECT_EQ(step.peak_buffer_bytes, step.peak_bytes.images + step.peak_bytes.gradients);
}

}  // namespace
}  // namespace weft
