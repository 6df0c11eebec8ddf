#include "src/train/planner/replay.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/train/plan/memory_need.h"
#include "src/train/plan/parameter_sets.h"
#include "src/train/plan/step_summary.h"
#include "src/train/planner/context_replay.h"
#include "src/train/planner/replay_sizes.h"
#include "weft/comm/comm_engine.h"
#include "weft/core/status.h"
#include "weft/memory/node_heap.h"
#include "weft/mesh/simulation.h"
#include "weft/optim/matrix_exchange.h"
#include "weft/sharding/sharded_groups.h"

namespace weft {
namespace {

// Time of one thread for the products of a matrix.
double OrthogonalizeNs(const ReplayInput& input, const Shape& matrix) {
  return OrthogonalizeOperations(input.plan.muon, matrix[0], matrix[1]) / input.rates.flops_f32 * 1e9;
}
// The same for a rank's matrices. The ranks of a shard group have about equal shares. Other rules have none.
double OrthogonalizeNs(const ReplayInput& input) {
  if (input.plan.optimizer != OptimizerKind::kMuon) return 0;
  double ns = 0;
  for (const Shape& matrix : HiddenMatricesOfLayer(input.model)) ns += OrthogonalizeNs(input, matrix);
  return ns * static_cast<double>(input.model.layers) / input.plan.shard_group_size();
}

constexpr int kSteps = 2;  // The first step records the order of groups.
// Computation of a rank in a step: eleven days. The simulation of a longer one would take minutes.
constexpr double kMaxComputeMs = 1e9;

// Counters that all ranks write down. A simulation has one thread.
struct Records {
  std::vector<EngineCounters> before, after;
  MemoryPeaks peaks;
  size_t context_bytes = 0;
  size_t scratch_bytes = 0;
  size_t heap_bytes = 0;
};

// One rank of the replay.
class ReplayRank {
 public:
  ReplayRank(Bootstrap& bootstrap, const ReplayInput& input, const std::vector<ReplayGroup>& groups,
             int64_t divisor)
      : bootstrap_(bootstrap), input_(input), groups_(groups), divisor_(divisor) {}

  absl::Status Run(Records& records) {
    WEFT_RETURN_IF_ERROR(Connect());
    const auto rank = static_cast<size_t>(bootstrap_.rank());
    for (int step = 0; step < kSteps; ++step) {
      records.before[rank] = engine_->counters();
      sharded_->ResetPeaks();
      if (context_ != nullptr) context_->ResetPeak();
      WEFT_RETURN_IF_ERROR(Step(step));
      records.after[rank] = engine_->counters();
      step_ends_ns_.push_back(bootstrap_.runtime().NowNs());
    }
    if (rank == 0) {
      records.peaks = sharded_->peaks();
      if (context_ != nullptr) records.context_bytes = context_->peak_bytes();
      records.scratch_bytes = engine_->scratch_peak_bytes();
      records.heap_bytes = heap_->peak_bytes();
    }
    return absl::OkStatus();
  }
  const std::vector<int64_t>& step_ends_ns() const { return step_ends_ns_; }

 private:
  absl::Status Connect() {
    EngineOptions options;
    options.timeout = absl::Hours(24);  // Of virtual time: a step may be that slow.
    options.share_domain = input_.plan.parallel.share_domain;
    NodeHeap::Options heap_options;
    heap_options.segment_bytes = ReplaySegmentBytes(input_, divisor_);
    WEFT_ASSIGN_OR_RETURN(heap_, NodeHeap::Create(bootstrap_, heap_options));
    WEFT_ASSIGN_OR_RETURN(engine_, CommEngine::Create(bootstrap_, *heap_, options));
    WEFT_ASSIGN_OR_RETURN(
        summaries_, StepSummaries::Create(bootstrap_, *heap_, *engine_, input_.plan.indexers.has_value()));
    WEFT_ASSIGN_OR_RETURN(context_, ContextReplay::Create(*engine_, input_, divisor_, [this](double ns) {
                            Compute(ns, input_.threads);
                          }));
    const auto keep_zeros = [](const Parameter&, int64_t, int64_t, float*) { return absl::OkStatus(); };
    std::vector<GroupMembers> members = CopyMembers(groups_, divisor_);
    for (const GroupMembers& group : members) parameters_.push_back(group.parameters);
    WEFT_ASSIGN_OR_RETURN(sharded_,
                          ShardedGroups::Create(*engine_, input_.plan.mesh, std::move(members),
                                                input_.plan.Policy(WireCompression::kNone), keep_zeros));
    sharded_->SetScheduleRules(input_.rules);
    for (int group = 0; group < sharded_->group_count(); ++group) {
      elements_.push_back(0);
      for (const ShardView& shard : sharded_->Shards(group)) elements_.back() += TrainedElements(shard);
    }
    return ConnectMatrices();
  }

  absl::Status ConnectMatrices() {
    if (input_.plan.optimizer != OptimizerKind::kMuon) return absl::OkStatus();
    for (const ReplayGroup& group : groups_) {
      for (const auto& parameter : group.members.parameters)
        whole_shapes_[parameter->name] = parameter->shape;
    }
    WEFT_ASSIGN_OR_RETURN(matrices_, MatrixExchange::Create(*sharded_, IsHiddenMatrix, input_.plan.muon));
    return absl::OkStatus();
  }

  void Compute(double ns, int threads) {
    bootstrap_.runtime().simulation()->Compute(bootstrap_.rank(), std::llround(ns), threads);
  }
  void ComputePart(ModelPart part, bool forward) {
    const PartTimes& times = input_.times[static_cast<size_t>(part)];
    const double share = context_ == nullptr ? 1 : context_->share();
    Compute(share * (forward ? times.forward_ns : times.backward_ns), input_.threads);
  }
  absl::Status ComputeBlock(int group, bool forward) {
    if (context_ != nullptr) {
      const int64_t layer = group - 1;  // The root's group comes first.
      return forward ? context_->Forward(layer) : context_->Backward(layer);
    }
    const bool recomputes = input_.plan.parallel.activation_checkpoint == ActivationCheckpoint::kFull;
    if (!forward && recomputes) ComputePart(ModelPart::kBlock, true);
    ComputePart(ModelPart::kBlock, forward);
    return absl::OkStatus();
  }
  absl::Status ComputeGroup(int group, bool forward) {
    const ModelPart part = groups_[static_cast<size_t>(group)].part;
    if (part == ModelPart::kBlock) return ComputeBlock(group, forward);
    ComputePart(part, forward);
    return absl::OkStatus();
  }
  // Calls the schedule, and charges the casts and copies that it did on this thread.
  absl::Status Scheduled(absl::Status status) {
    const int64_t copied = sharded_->counters().copied_bytes;
    Compute(static_cast<double>((copied - copied_bytes_) * divisor_) / input_.rates.cast_gb_s, 1);
    copied_bytes_ = copied;
    return status;
  }

  absl::Status Forward(const SchedulePass& pass) {
    if (context_ != nullptr) context_->BeginPass();
    WEFT_RETURN_IF_ERROR(Scheduled(sharded_->BeforeForward(kRootGroup, pass)));
    ComputePart(ModelPart::kEmbedding, true);
    for (int group = 1; group < sharded_->group_count(); ++group) {
      const ModelPart part = groups_[static_cast<size_t>(group)].part;
      if (part == ModelPart::kHead) ComputePart(ModelPart::kNorm, true);
      WEFT_RETURN_IF_ERROR(Scheduled(sharded_->BeforeForward(group, pass)));
      WEFT_RETURN_IF_ERROR(ComputeGroup(group, true));
      WEFT_RETURN_IF_ERROR(Scheduled(sharded_->AfterForward(group, pass)));
    }
    if (is_tied()) ComputeTiedHead(true);
    return Scheduled(sharded_->AfterForward(kRootGroup, pass));
  }
  absl::Status Backward(const SchedulePass& pass) {
    WEFT_RETURN_IF_ERROR(Scheduled(sharded_->BeforeBackward(kRootGroup, pass)));
    if (is_tied()) ComputeTiedHead(false);
    for (int group = sharded_->group_count() - 1; group > kRootGroup; --group) {
      const ModelPart part = groups_[static_cast<size_t>(group)].part;
      WEFT_RETURN_IF_ERROR(Scheduled(sharded_->BeforeBackward(group, pass)));
      WEFT_RETURN_IF_ERROR(ComputeGroup(group, false));
      WriteGradients(group);
      WEFT_RETURN_IF_ERROR(Scheduled(sharded_->AfterBackward(group)));
      if (part == ModelPart::kHead) ComputePart(ModelPart::kNorm, false);
    }
    ComputePart(ModelPart::kEmbedding, false);
    WriteGradients(kRootGroup);
    WEFT_RETURN_IF_ERROR(Scheduled(sharded_->AfterBackward(kRootGroup)));
    sharded_->Abandon(pass.id);
    return Scheduled(sharded_->FinishBackward());
  }
  bool is_tied() const { return groups_.back().part != ModelPart::kHead; }
  void ComputeTiedHead(bool forward) {
    ComputePart(ModelPart::kNorm, forward);
    ComputePart(ModelPart::kHead, forward);
  }
  void WriteGradients(int group) {
    for (const auto& parameter : parameters_[static_cast<size_t>(group)]) {
      if (parameter->requires_grad) parameter->BeginGradWrite();
    }
  }
  int64_t TrainedElements(const ShardView& shard) const {
    return shard.parameter->requires_grad ? shard.elements() * divisor_ : 0;
  }

  absl::Status Step(int step) {
    const int64_t microbatches = input_.plan.batch.microbatches;
    const ShardUpdate update = [this](absl::Span<const ShardView> shards) {
      int64_t updated = 0;
      for (const ShardView& shard : shards) updated += TrainedElements(shard);
      Compute(static_cast<double>(updated) * input_.rates.adamw_ns / input_.threads, input_.threads);
      return absl::OkStatus();
    };
    for (int64_t microbatch = 0; microbatch < microbatches; ++microbatch) {
      const bool last = microbatch + 1 == microbatches;
      const MicrobatchSync sync = input_.plan.SyncOf(last);
      for (int group = 0; group < sharded_->group_count(); ++group) {
        sharded_->SetRequiresGradientSync(group, sync.reduce_scatter);
        sharded_->SetRequiresAllReduce(group, sync.all_reduce);
      }
      sharded_->SetIsLastBackward(last);
      if (last && input_.plan.updates_in_backward) {
        WEFT_RETURN_IF_ERROR(sharded_->BeginUpdatesInBackward(update, ClipSetsOf(input_.plan)));
      }
      const SchedulePass pass{static_cast<uintptr_t>(step * microbatches + microbatch + 1), true};
      WEFT_RETURN_IF_ERROR(Forward(pass));
      WEFT_RETURN_IF_ERROR(Backward(pass));
    }
    int64_t own = 0;
    for (const int64_t elements : elements_) own += elements;
    Compute(static_cast<double>(own) * input_.rates.norm_ns / input_.threads, input_.threads);
    const bool in_backward = input_.plan.updates_in_backward;
    WEFT_RETURN_IF_ERROR(in_backward
                             ? sharded_->FinishUpdatesInBackward().status()
                             : sharded_->ClipGradNorms(ClipSetsOf(input_.plan), NormType::kTwo).status());
    WEFT_RETURN_IF_ERROR(summaries_->Sum({}).status());
    if (matrices_ != nullptr) WEFT_RETURN_IF_ERROR(OrthogonalizeAll());
    if (!in_backward) WEFT_RETURN_IF_ERROR(sharded_->UpdateShards(update));
    sharded_->ZeroGradients();
    return absl::OkStatus();
  }

  // The exchange of Muon, and the products of this rank's matrices.
  absl::Status OrthogonalizeAll() {
    std::map<const Parameter*, float*> directions;
    for (const ShardView& shard : sharded_->Shards()) directions[shard.parameter] = shard.grad;
    std::vector<float*> own;
    for (int i = 0; i < matrices_->count(); ++i) {
      const auto found = directions.find(&matrices_->parameter(i));
      own.push_back(found == directions.end() ? nullptr : found->second);
    }
    return matrices_->TransformAll(own, [this](int matrix, float* /*whole*/) {
      Compute(OrthogonalizeNs(input_, whole_shapes_.at(matrices_->parameter(matrix).name)) / input_.threads,
              input_.threads);
    });
  }

  Bootstrap& bootstrap_;
  const ReplayInput& input_;
  const std::vector<ReplayGroup>& groups_;
  const int64_t divisor_;
  std::unique_ptr<NodeHeap> heap_;
  std::unique_ptr<CommEngine> engine_;
  std::unique_ptr<StepSummaries> summaries_;
  std::unique_ptr<ContextReplay> context_;  // Null if sequences are not split.
  std::unique_ptr<ShardedGroups> sharded_;
  std::vector<std::vector<std::shared_ptr<Parameter>>> parameters_;  // By group.
  std::vector<int64_t> elements_;              // By group: elements that this rank updates.
  std::unique_ptr<MatrixExchange> matrices_;   // Null unless the rule is Muon.
  std::map<std::string, Shape> whole_shapes_;  // Of its matrices, unscaled.
  int64_t copied_bytes_ = 0;
  std::vector<int64_t> step_ends_ns_;
};

SimOptions MachineOf(const ReplayInput& input, int64_t divisor) {
  // Share of a link's bytes that is no header of TCP, IP or Ethernet: 1448 of 1514 bytes of a frame.
  constexpr double kPayload = 0.956;
  // Polls of many ranks are most of the events. They delay a rank by less than a thousandth of a step.
  constexpr int64_t kPollNs = 1'000;
  constexpr int kRanksOfPoll = 4;
  const auto scale = static_cast<double>(divisor);
  SimOptions machine;
  machine.jitter = 0;
  machine.poll_ns = kPollNs * std::max(1, SimulatedRanks(input) / kRanksOfPoll);
  machine.memory_speed = input.rates.copy_gb_s / scale;
  // With a domain for each rank, most bytes between domains do not leave a NUMA node.
  if (input.plan.parallel.share_domain != ShareDomain::kNone)
    machine.cross_domain_speed = input.numa_gb_s.value_or(input.rates.copy_gb_s / 2) / scale;
  machine.wire_latency_ns = std::llround(input.link.latency_us * 1e3);
  machine.wire_speed = kPayload * input.link.gigabits / 8 / scale;
  machine.cores = input.cores;
  machine.wire_core_speed = input.rates.wire_gb_s / scale;
  machine.mirror_nodes = MirrorsNodes(input);
  return machine;
}

double ComputeMs(const ReplayInput& input) {
  const auto total = [&](ModelPart part) {
    const PartTimes& times = input.times[static_cast<size_t>(part)];
    return times.forward_ns + times.backward_ns;
  };
  const double recomputed = input.plan.parallel.activation_checkpoint == ActivationCheckpoint::kFull
                                ? input.times[static_cast<size_t>(ModelPart::kBlock)].forward_ns
                                : 0;
  const double sequences = total(ModelPart::kEmbedding) + total(ModelPart::kNorm) + total(ModelPart::kHead) +
                           static_cast<double>(input.model.layers) * (total(ModelPart::kBlock) + recomputed);
  const double microbatch = sequences / input.plan.context.size;
  const int owners = input.plan.shard_group_size() *
                     (input.plan.parallel.shard_optimizer_over_replicas ? input.plan.replicate_size : 1);
  const double elementwise = static_cast<double>(TrainedElements(input.model, input.plan)) / owners *
                             (input.rates.adamw_ns + input.rates.norm_ns);
  const double update = (elementwise + OrthogonalizeNs(input)) / input.threads;
  return (microbatch * static_cast<double>(input.plan.batch.microbatches) + update) * 1e-6;
}

}  // namespace

absl::StatusOr<ReplayResult> ReplayStep(const ReplayInput& input) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<ReplayGroup> groups, GroupsOf(input.model, input.lora));
  ReplayResult result;
  result.compute_ms = ComputeMs(input);
  if (!(result.compute_ms <= kMaxComputeMs)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a rank would compute for ", result.compute_ms / 1e3, " s in a step, but at most ",
                     kMaxComputeMs / 1e3,
                     " s can be simulated: give more ranks or cores, a smaller batch, or other costs"));
  }
  if (input.divisor) {
    result.divisor = *input.divisor;
  } else {
    WEFT_ASSIGN_OR_RETURN(result.divisor, ChooseDivisor(input));
  }
  const auto ranks = static_cast<size_t>(SimulatedRanks(input));
  Records records;
  records.before.resize(ranks);
  records.after.resize(ranks);
  std::vector<int64_t> ends_ns(kSteps);
  const SimReport report = RunSimulatedRanks(
      input.nodes, MachineOf(input, result.divisor), [&](Bootstrap& bootstrap) -> absl::Status {
        ReplayRank rank(bootstrap, input, groups, result.divisor);
        WEFT_RETURN_IF_ERROR(rank.Run(records));
        for (size_t step = 0; step < kSteps; ++step) {
          ends_ns[step] = std::max(ends_ns[step], rank.step_ends_ns()[step]);
        }
        return absl::OkStatus();
      });
  WEFT_RETURN_IF_ERROR(report.status());
  result.step_ms = static_cast<double>(ends_ns[kSteps - 1] - ends_ns[kSteps - 2]) * 1e-6;
  const auto count = static_cast<int64_t>(ranks);
  const auto sum = [&](int64_t EngineCounters::*counter) {
    int64_t total = 0;
    for (size_t rank = 0; rank < ranks; ++rank)
      total += records.after[rank].*counter - records.before[rank].*counter;
    return total;
  };
  result.exposed_ms = static_cast<double>(sum(&EngineCounters::wait_ns)) * 1e-6 / static_cast<double>(count);
  result.all_gather_bytes = sum(&EngineCounters::all_gather_bytes) / count * result.divisor;
  result.reduce_scatter_bytes = sum(&EngineCounters::reduce_scatter_bytes) / count * result.divisor;
  result.all_reduce_bytes = sum(&EngineCounters::all_reduce_bytes) / count * result.divisor;
  result.context_bytes = sum(&EngineCounters::context_bytes) / count * result.divisor;
  // Independent of the sizes of parameters.
  result.control_bytes = sum(&EngineCounters::control_bytes) / count;
  result.optimizer_bytes = sum(&EngineCounters::optimizer_bytes) / count * result.divisor;
  result.wire_bytes = sum(&EngineCounters::wire_bytes) / SimulatedNodes(input) * result.divisor;
  const auto scale = static_cast<size_t>(result.divisor);
  result.peaks = {records.peaks.image_bytes * scale, records.peaks.gradient_bytes * scale,
                  records.peaks.shard_bytes * scale};
  result.context_peak_bytes = static_cast<int64_t>(records.context_bytes * scale);
  result.scratch_bytes = static_cast<int64_t>(records.scratch_bytes);
  result.heap_bytes = static_cast<int64_t>(records.heap_bytes * scale);
  result.events = report.events;
  return result;
}

}  // namespace weft
