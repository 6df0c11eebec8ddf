#include "tests/sharding/support/toy_training.h"

#include <algorithm>
#include <cmath>

#include "weft/core/status.h"
#include "weft/nn/materialize.h"

namespace weft::testing {
namespace {

constexpr size_t kSegmentBytes = size_t{8} << 20;

EngineCounters Difference(const EngineCounters& after, const EngineCounters& before) {
  EngineCounters difference;
  difference.all_gather_bytes = after.all_gather_bytes - before.all_gather_bytes;
  difference.reduce_scatter_bytes = after.reduce_scatter_bytes - before.reduce_scatter_bytes;
  difference.all_reduce_bytes = after.all_reduce_bytes - before.all_reduce_bytes;
  difference.cross_domain_bytes = after.cross_domain_bytes - before.cross_domain_bytes;
  difference.copied_bytes = after.copied_bytes - before.copied_bytes;
  return difference;
}

ShardingCounters Difference(const ShardingCounters& after, const ShardingCounters& before) {
  return {after.all_gathers - before.all_gathers, after.reduce_scatters - before.reduce_scatters,
          after.all_reduces - before.all_reduces, after.copied_bytes - before.copied_bytes,
          after.unshared_images - before.unshared_images};
}

// The shape of a step, of a model with one mesh.
StepShape ShapeOf(const ShardedModel& model, const ToyRun& run, const CommEngine& engine) {
  const Bootstrap& bootstrap = engine.bootstrap();
  StepShape shape;
  shape.shard_size = run.shard_group_size();
  shape.replicate_size = run.replicate;
  shape.shard_rank = bootstrap.rank() % shape.shard_size;
  shape.replicate_rank = bootstrap.rank() / shape.shard_size;
  shape.microbatches = run.microbatches;
  shape.gradient_sync = run.sync;
  const auto on_first_node = static_cast<int>(bootstrap.node_map().RanksOf(0).size());
  shape.ranks_per_node = on_first_node == bootstrap.size() ? 0 : on_first_node;
  const NodeMap& domains = engine.share_domains().map;
  if (domains.node_count() > bootstrap.node_map().node_count())
    shape.ranks_per_domain = static_cast<int>(domains.RanksOf(0).size());
  shape.slice_bytes = run.slice_bytes;
  shape.residency = model.residency().residency;
  return shape;
}

StepCosts ExpectedCosts(const ShardedModel& model, StepShape shape, const CommEngine& engine) {
  const Bootstrap& bootstrap = engine.bootstrap();
  const int rank = bootstrap.rank();
  StepCosts costs;
  const ShardedGroups& groups = model.sharded_groups();
  for (int group = 0; group < groups.group_count(); ++group) {
    ShardingPolicy policy = model.policy();
    if (const auto& size_of = policy.reshard_after_forward_size_of) {
      policy.reshard_after_forward_size =
          size_of(groups.name(group)).value_or(policy.reshard_after_forward_size);
    }
    const PipelineLanes& lanes = PartsOf(model).groups[static_cast<size_t>(group)]->lanes();
    shape.shard_size = lanes.shard_group().size();
    shape.shard_rank = lanes.shard_group().group_rank;
    shape.replicate_size = bootstrap.size() / shape.shard_size;
    shape.replicate_rank = rank / shape.shard_size;
    const bool is_gathered_again = IsGatheredAgain(group, groups.group_count(), policy);
    costs += CostsOfGroup(groups.layout(group), is_gathered_again, policy, shape);
  }
  return costs;
}

absl::Status ToyStep(ShardedModel& model, ToyNet& net, const ToyRun& run, int rank, int step,
                     std::vector<double>* norms) {
  for (int microbatch = 0; microbatch < run.microbatches; ++microbatch) {
    const bool last = microbatch + 1 == run.microbatches;
    model.SetRequiresGradientSync(last || run.sync != GradientSync::kLast);
    model.SetRequiresAllReduce(last || run.sync == GradientSync::kEach);
    model.SetIsLastBackward(last);
    if (last && run.updates_in_backward) WEFT_RETURN_IF_ERROR(BeginToyUpdateInBackward(model));
    WEFT_RETURN_IF_ERROR(ToyPass(net, rank, run.ranks(), step, microbatch, run.microbatches));
  }
  if (run.updates_in_backward) return FinishToyUpdateInBackward(model, norms);
  return ToyUpdate(model, run.clip, norms, run.updates_directly);
}

ShardUpdate GradientDescent(double factor) {
  return [factor](absl::Span<const ShardView> shards) {
    for (const ShardView& shard : shards) {
      for (int64_t i = 0; shard.grad != nullptr && i < shard.elements(); ++i)
        shard.data[i] -= kToyLearningRate * static_cast<float>(factor) * shard.grad[i];
    }
    return absl::OkStatus();
  };
}

}  // namespace

std::vector<GroupMembers> MembersOf(const ShardedModel& model) {
  std::vector<GroupMembers> groups;
  for (const auto& group : PartsOf(model).groups)
    groups.push_back({group->name(), groups.empty() ? -1 : kRootGroup, group->parameters()});
  return groups;
}

std::vector<FlatLayout> LayoutsOf(const ShardedModel& model) {
  std::vector<FlatLayout> layouts;
  for (const auto& group : PartsOf(model).groups) layouts.push_back(group->layout());
  return layouts;
}

absl::StatusOr<RankEngine> MakeToyRank(Bootstrap& bootstrap, const EngineOptions& options) {
  return RankEngine::Make(bootstrap, WithTestTimeout(options),
                          {.segment_bytes = kSegmentBytes, .poison_released = true});
}

absl::StatusOr<DeviceMesh> MakeToyMesh(int replicate, int shard, int context) {
  return DeviceMesh::Create({{"replicate", replicate}, {"shard", shard}, {"context", context}},
                            replicate * shard * context);
}

std::string ToyRun::Describe() const {
  return absl::StrCat(
      replicate, " x ", shard, " x ", context, ", layout ", ToAbsl(Name(policy.layout)), ", reshard ",
      policy.reshard_after_forward, ", prefetch ", policy.PrefetchDepth(), ", node shared ",
      static_cast<int>(policy.node_shared), ", ", ToAbsl(Name(policy.param_dtype)), " reduced in ",
      ToAbsl(Name(policy.reduce_dtype)), ", ", microbatches, " microbatches, sync ", ToAbsl(Name(sync)),
      policy.shard_optimizer_over_replicas ? ", optimizer over replicas" : "", ", compression between nodes ",
      ToAbsl(Name(policy.wire_compression)), checkpoint ? ", checkpoints" : "",
      updates_directly ? ", updated directly" : "", updates_in_backward ? ", updated in backward" : "");
}

absl::Status ToyPass(ToyNet& net, int rank, int ranks, int step, int microbatch, int microbatches) {
  const int64_t rows = kToyRows / (ranks * microbatches);
  const int64_t begin = step * kToyRows + (microbatch * ranks + rank) * rows;
  Invocation invocation;
  const Tensor inputs = ToyInputs(begin, rows, net.parameters()[0]->elements());
  WEFT_ASSIGN_OR_RETURN(const Tensors outputs, net.Forward(invocation, {inputs}));
  const Tensor gradient = ToyLossGradient(outputs[0], 1.0F / static_cast<float>(kToyRows));
  return net.Backward(invocation, {gradient}).status();
}

absl::Status BeginToyUpdateInBackward(ShardedModel& model) {
  const auto all = [](const Parameter&) { return true; };
  return model.BeginUpdatesInBackward(GradientDescent(1.0), {{all, kNoClipping}});
}

absl::Status FinishToyUpdateInBackward(ShardedModel& model, std::vector<double>* norms) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<GradientNorm> computed, model.FinishUpdatesInBackward());
  if (norms != nullptr) norms->push_back(computed[0].norm);
  model.ZeroGradients();
  return absl::OkStatus();
}

absl::Status ToyUpdate(ShardedModel& model, double clip, std::vector<double>* norms, bool updates_directly) {
  WEFT_ASSIGN_OR_RETURN(const GradientNorm norm, model.ClipGradNorm(clip));
  if (norms != nullptr) norms->push_back(norm.norm);
  const ShardUpdate update = GradientDescent(norm.factor);
  WEFT_RETURN_IF_ERROR(updates_directly ? update(model.Shards()) : model.UpdateShards(update));
  model.ZeroGradients();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> ToyWeights(ShardedModel& model) {
  std::vector<float> weights;
  for (const auto& group : PartsOf(model).groups) {
    WEFT_RETURN_IF_ERROR(group->Unshard(Priority::kCritical));
    WEFT_RETURN_IF_ERROR(group->WaitUnshard());
    for (const auto& parameter : group->parameters()) {
      const std::vector<float> values = ReadValues(parameter->data);
      weights.insert(weights.end(), values.begin(), values.end());
    }
    WEFT_RETURN_IF_ERROR(group->Reshard());
  }
  return weights;
}

absl::StatusOr<ToyOutcome> TrainToy(Bootstrap& bootstrap, const ToyRun& run) {
  EngineOptions options;
  options.slice_bytes = run.slice_bytes;
  WEFT_ASSIGN_OR_RETURN(const RankEngine rank, MakeToyRank(bootstrap, options));
  WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(run.replicate, run.shard, run.context));
  ToyNet net(run.sizes);
  for (Module* block : net.blocks()) block->SetActivationCheckpointing(run.checkpoint);
  WEFT_ASSIGN_OR_RETURN(
      std::unique_ptr<ShardedModel> model,
      FullyShard(net, net.blocks(), mesh, *rank.engine, run.policy, LoadInitialValues(kToySeed)));
  ToyOutcome outcome;
  outcome.rank = bootstrap.rank();
  for (int step = 0; step < run.steps; ++step) {
    const EngineCounters engine = rank.engine->counters();
    const ShardingCounters sharding = model->counters();
    model->ResetPeaks();
    WEFT_RETURN_IF_ERROR(ToyStep(*model, net, run, bootstrap.rank(), step, &outcome.norms));
    outcome.engine = Difference(rank.engine->counters(), engine);
    outcome.sharding = Difference(model->counters(), sharding);
  }
  outcome.peaks = model->peaks();
  const StepShape shape = ShapeOf(*model, run, *rank.engine);
  outcome.expected = ExpectedCosts(*model, shape, *rank.engine);
  WEFT_ASSIGN_OR_RETURN(outcome.largest_peaks,
                        LargestPeaks(MembersOf(*model), model->policy(), shape, run.updates_in_backward));
  WEFT_ASSIGN_OR_RETURN(outcome.weights, ToyWeights(*model));
  model.reset();  // Waits for its operations.
  outcome.total_copied_bytes = rank.engine->counters().copied_bytes;
  return outcome;
}

absl::StatusOr<ToyOutcome> TrainToyOnOneRank(const ToyRun& run) {
  ToyNet net(run.sizes);
  MaterializedParameters memory(net, kToySeed, DType::kF32, DType::kF32);
  ToyOutcome outcome;
  for (int step = 0; step < run.steps; ++step) {
    WEFT_RETURN_IF_ERROR(ToyPass(net, 0, 1, step, 0, 1));
    double squares = 0.0;
    for (const auto& parameter : net.AllParameters()) {
      for (const float g : ReadValues(parameter->grad)) squares += static_cast<double>(g) * g;
    }
    outcome.norms.push_back(std::sqrt(squares));
    const auto factor = static_cast<float>(std::min(1.0, run.clip / (outcome.norms.back() + 1e-6)));
    for (const auto& parameter : net.AllParameters()) {
      auto* data = parameter->data.As<float>();
      const auto* grad = parameter->grad.As<float>();
      for (int64_t i = 0; i < parameter->elements(); ++i) data[i] -= kToyLearningRate * factor * grad[i];
    }
    memory.ClearGradients();
  }
  for (const auto& parameter : net.AllParameters()) {
    const std::vector<float> values = ReadValues(parameter->data);
    outcome.weights.insert(outcome.weights.end(), values.begin(), values.end());
  }
  return outcome;
}

}  // namespace weft::testing
