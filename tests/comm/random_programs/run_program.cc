#include <algorithm>
#include <utility>

#include "src/comm/codec/delta_codec.h"
#include "src/comm/codec/slice_codec.h"
#include "tests/comm/random_programs/engine_with_rules.h"
#include "tests/comm/random_programs/program_runner.h"
#include "weft/mesh/device_mesh.h"

namespace weft::testing {

namespace {

// The ranks of the group that are on this rank's node, or in its share domain.
ProcessGroup WithinNode(const ProcessGroup& group, const NodeMap& nodes_or_domains, int rank) {
  ProcessGroup local{group.name + " of the node", {}, 0};
  for (const int other : group.ranks) {
    if (!nodes_or_domains.SameNode(other, rank)) continue;
    if (other == rank) local.group_rank = local.size();
    local.ranks.push_back(other);
  }
  return local;
}

// Bytes of the largest image that an operation of the program gathers.
size_t ImageBytes(const Program& program) {
  size_t bytes = 1;
  for (const ProgramOp& op : program.ops) {
    const int ranks = op.whole_world ? program.nodes.size() : program.shard_size;
    bytes = std::max(bytes, static_cast<size_t>(BytesOf(Sum(PartsOf(op, ranks)), op.dtype)));
  }
  return bytes;
}

}  // namespace

absl::Status ProgramRunner::Open() {
  WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, [&]() -> absl::StatusOr<EngineFixture> {
    EngineFixture made;
    NodeHeap::Options heap;
    heap.segment_bytes = size_t{8} << 20;
    heap.timeout = program_.engine.timeout;
    heap.poison_released = true;
    WEFT_ASSIGN_OR_RETURN(made.heap, NodeHeap::Create(bootstrap_, heap));
    made.pool = std::make_unique<BufferPool>(*made.heap, "program");
    WEFT_ASSIGN_OR_RETURN(
        made.engine, EngineWithRules::Create(bootstrap_, *made.heap, program_.engine, rules_.credit_rules));
    return made;
  }());
  fixture_ = std::move(fixture);
  WEFT_ASSIGN_OR_RETURN(
      const DeviceMesh mesh,
      DeviceMesh::Create({{"replicate", -1}, {"shard", program_.shard_size}}, bootstrap_.size()));
  world_ = WorldGroup(bootstrap_);
  WEFT_ASSIGN_OR_RETURN(shard_, mesh.Group({"shard"}, bootstrap_.rank()));
  WEFT_ASSIGN_OR_RETURN(replicate_, mesh.Group({"replicate"}, bootstrap_.rank()));
  values_.emplace(world_, shard_, replicate_);
  WEFT_ASSIGN_OR_RETURN(gather_lane_, AddLane(shard_, LanePurpose::kAllGather));
  WEFT_ASSIGN_OR_RETURN(world_gather_lane_, AddLane(world_, LanePurpose::kAllGather));
  WEFT_ASSIGN_OR_RETURN(scatter_lane_, AddLane(shard_, LanePurpose::kReduceScatter));
  WEFT_ASSIGN_OR_RETURN(reduce_lane_, AddLane(replicate_, LanePurpose::kAllReduce));
  WEFT_ASSIGN_OR_RETURN(context_lane_, AddLane(world_, LanePurpose::kContext));
  WEFT_ASSIGN_OR_RETURN(control_lane_, AddLane(world_, LanePurpose::kControl));
  node_ = RanksOfThisNode(bootstrap_);
  shard_of_node_ = WithinNode(shard_, bootstrap_.node_map(), bootstrap_.rank());
  WEFT_ASSIGN_OR_RETURN(shard_readers_lane_, AddLane(shard_of_node_, LanePurpose::kControl));
  WEFT_ASSIGN_OR_RETURN(node_readers_lane_, AddLane(node_, LanePurpose::kControl));
  const size_t image_bytes = ImageBytes(program_);
  for (int image = 0; image < ProgramOp::kImages; ++image) {
    WEFT_ASSIGN_OR_RETURN(images_.emplace_back(), fixture_->pool->Acquire(image_bytes));
  }
  std::vector<SharedBlockRequest> requests;
  const NodeMap& domains = engine().share_domains().map;
  for (const ProcessGroup* group : {&shard_of_node_, &node_}) {
    const ProcessGroup holders = WithinNode(*group, domains, bootstrap_.rank());
    requests.resize(requests.size() + ProgramOp::kImages, {holders.ranks, image_bytes});
  }
  WEFT_ASSIGN_OR_RETURN(shared_images_,
                        ShareBlocks(bootstrap_, *fixture_->heap, requests, fixture_->engine->timeout()));
  return absl::OkStatus();
}

absl::Status ProgramRunner::CheckStrided(Live& live) {
  for (int peer = 0; peer < world_.size(); ++peer) {
    if (live.shifted_from && *live.shifted_from != peer) continue;
    WEFT_RETURN_IF_ERROR(Annotate(live.received[static_cast<size_t>(peer)].Check(peer, bootstrap_.rank()),
                                  absl::StrCat("op ", live.op)));
  }
  return absl::OkStatus();
}

absl::Status ProgramRunner::Check(Live& live) {
  if (std::exchange(live.checked, true)) return absl::OkStatus();
  const ProgramOp& op = program_.ops[static_cast<size_t>(live.op)];
  switch (op.kind) {
    case ProgramOp::Kind::kGatherImage:
      return CheckGathered(live, op, ImageOf(op));
    case ProgramOp::Kind::kGatherDelta:
      return CheckGathered(live, op, live.output.data());
    case ProgramOp::Kind::kReduceGradients:
      return values_->CheckReduction(live.op, op, live.parts, live.output.data());
    case ProgramOp::Kind::kAllReduce:
      return values_->CheckAllReduce(live.op, op, live.output.data());
    case ProgramOp::Kind::kExchange:
      return values_->CheckExchange(live.op, op, live.parts, live.output.data());
    case ProgramOp::Kind::kStridedExchange:
    case ProgramOp::Kind::kShift:
      return CheckStrided(live);
    case ProgramOp::Kind::kBroadcast:
      return values_->CheckBroadcast(live.op, op, live.output.data());
    case ProgramOp::Kind::kBarrier:
      if (arrivals_[static_cast<size_t>(live.op)] == bootstrap_.size()) break;
      return absl::DataLossError(absl::StrCat("op ", live.op, ": a barrier is ready, but only ",
                                              arrivals_[static_cast<size_t>(live.op)], " of ",
                                              bootstrap_.size(), " ranks have submitted it"));
    case ProgramOp::Kind::kMessages:  // See CompleteMessages.
      break;
  }
  return absl::OkStatus();
}

absl::Status ProgramRunner::FinishOne(size_t index) {
  WEFT_RETURN_IF_ERROR(Complete(*live_[index]));
  for (std::vector<Live*>* fillers : {&last_filler_, &last_shared_filler_}) {
    std::replace(fillers->begin(), fillers->end(), live_[index].get(), static_cast<Live*>(nullptr));
  }
  live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(index));
  return absl::OkStatus();
}

absl::Status ProgramRunner::CompleteMessages(Live& live) {
  for (Live::Message& message : live.messages) {
    WEFT_RETURN_IF_ERROR(message.work.WaitReleased());
    if (!message.is_receive) continue;
    const ProgramMessage& program = message.program;
    const int from = message.work.source();
    if (!program.any_source && from != program.from) {
      return absl::DataLossError(
          absl::StrCat("op ", live.op, ": a message from rank ", program.from, " came from rank ", from));
    }
    WEFT_RETURN_IF_ERROR(
        Annotate(weft::testing::CheckMessage(from, program.to, program.tag, message.data(), program.bytes),
                 absl::StrCat("op ", live.op)));
  }
  return absl::OkStatus();
}

absl::Status ProgramRunner::Complete(Live& live) {
  if (program_.ops[static_cast<size_t>(live.op)].kind == ProgramOp::Kind::kMessages)
    return CompleteMessages(live);
  WEFT_RETURN_IF_ERROR(live.work.Wait());
  if (live.continue_later) Continue(live);
  if (live.continued.valid()) WEFT_RETURN_IF_ERROR(live.continued.Wait());
  WEFT_RETURN_IF_ERROR(Check(live));
  if (!rules_.free_after_release) {
    live.input = {};
    live.output = {};
    live.sent.clear();
    live.received.clear();
  }
  WEFT_RETURN_IF_ERROR(live.work.WaitReleased());
  WEFT_RETURN_IF_ERROR(CheckUpdatedBase(live));
  return live.continued.valid() ? live.continued.WaitReleased() : absl::OkStatus();
}

absl::Status ProgramRunner::CheckGathered(const Live& live, const ProgramOp& op, const std::byte* output) {
  if (live.ranges == nullptr) return values_->CheckGather(live.op, op, live.parts, output);
  const std::vector<std::byte> packed = PackRanges(*live.ranges, output, SizeOf(op.dtype));
  return values_->CheckGather(live.op, op, live.parts, packed.data());
}

// Checks that a kGatherDelta has updated the delta base.
absl::Status ProgramRunner::CheckUpdatedBase(Live& live) {
  const ProgramOp& op = program_.ops[static_cast<size_t>(live.op)];
  if (op.kind != ProgramOp::Kind::kGatherDelta || !rules_.free_after_release) return absl::OkStatus();
  return values_->CheckDeltaBase(live.op, op, live.parts, live.input.data());
}

absl::Status ProgramRunner::CheckBounds(ProgramOutcome& outcome) {
  const EngineCounters counters = engine().counters();
  outcome.operations = counters.operations;
  constexpr int kLanes = 9;  // One of them for messages.
  constexpr int kPhases = 3;
  const EngineOptions& options = program_.engine;
  const auto slice_bytes = static_cast<int64_t>(
      std::max(CompressedCapacity(/*number_bytes=*/1, options.slice_bytes),
               DeltaCapacity(options.slice_bytes / static_cast<int64_t>(sizeof(float)))));
  const int64_t bound = std::max(options.yield_window_bytes, slice_bytes) + kLanes * kPhases * slice_bytes;
  if (counters.yielded_peak_bytes > bound) {
    return absl::InternalError(
        absl::StrCat(counters.yielded_peak_bytes,
                     " bytes of lower priority were in flight during a demand of higher priority, at most ",
                     bound, " are allowed"));
  }
  if (2 * counters.ran_ahead_peak_bytes > options.max_budget_bytes) {
    return absl::InternalError(absl::StrCat(
        counters.ran_ahead_peak_bytes, " bytes ran ahead of silent peers, at most half of the budget of ",
        options.max_budget_bytes, " may"));
  }
  const int64_t windows =
      kLanes * kPhases * (2 * options.lane_window_bytes + slice_bytes) + options.max_budget_bytes;
  if (counters.requested_peak_bytes <= windows) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(counters.requested_peak_bytes,
                                          " bytes were requested from other nodes at once, at most ", windows,
                                          " fit the windows"));
}

absl::Status ProgramRunner::Run(ProgramOutcome& outcome) {
  WEFT_RETURN_IF_ERROR(Open());
  constexpr size_t kMaxLive = 6;
  const auto finish_any = [&] {
    return FinishOne(static_cast<size_t>(random_.Between(0, static_cast<int64_t>(live_.size()) - 1)));
  };
  for (int index = 0; index < static_cast<int>(program_.ops.size()); ++index) {
    if (random_.Chance(50)) bootstrap_.runtime().SleepFor(random_.Between(0, 50'000));
    ContinueReadyReductions();
    WEFT_RETURN_IF_ERROR(Submit(index));
    while (live_.size() > kMaxLive || (!live_.empty() && random_.Chance(30)))
      WEFT_RETURN_IF_ERROR(finish_any());
  }
  while (!live_.empty()) WEFT_RETURN_IF_ERROR(finish_any());
  return CheckBounds(outcome);
}

absl::Status RunProgram(Bootstrap& bootstrap, const Program& program, const ProgramRules& rules,
                        const ProgramMistake* mistake, ProgramOutcome& outcome, ProgramArrivals& arrivals) {
  return ProgramRunner(bootstrap, program, rules, mistake, arrivals).Run(outcome);
}

ScheduleReport RunSchedule(const Program& program, const SimOptions& machine, const ProgramRules& rules,
                           const ProgramMistake* mistake) {
  ScheduleReport report;
  std::vector<ProgramOutcome> outcomes(static_cast<size_t>(program.nodes.size()));
  ProgramArrivals arrivals(program.ops.size());
  report.simulation = RunSimulatedRanks(program.nodes, machine, [&](Bootstrap& bootstrap) {
    return RunProgram(bootstrap, program, rules, mistake, outcomes[static_cast<size_t>(bootstrap.rank())],
                      arrivals);
  });
  for (const ProgramOutcome& outcome : outcomes) report.operations += outcome.operations;
  return report;
}

}  // namespace weft::testing
