// Submission of each kind of operation.
#include "tests/comm/random_programs/program_runner.h"

namespace weft::testing {

absl::Status ProgramRunner::SubmitGather(int index, const ProgramOp& op, Live& live) {
  const ProcessGroup& group = op.whole_world ? world_ : shard_;
  live.parts = PartsOf(op, group.size());
  const int64_t own = live.parts[static_cast<size_t>(group.group_rank)];
  WEFT_ASSIGN_OR_RETURN(live.input, MakeBuffer(op, own));
  Fill(index, op, 0, own, live.input.data());
  OpOptions options = Options(index, op);
  Live*& last = LastFiller(op);
  if (last != nullptr) {
    // This rank has read the image. Peers may still read it.
    WEFT_RETURN_IF_ERROR(last->work.Wait());
    WEFT_RETURN_IF_ERROR(Check(*last));
    if (rules_.gate_images) options.gate = &last->work;
  }
  const LaneId lane = op.whole_world ? world_gather_lane_ : gather_lane_;
  std::byte* image = images_[static_cast<size_t>(op.image)].data();
  DrawRanges(index, op, live);
  live.work = live.ranges != nullptr
                  ? engine().AllGather(lane, live.input.data(), image, op.dtype, live.ranges, options)
                  : engine().AllGather(lane, live.input.data(), image, op.dtype, Sum(live.parts), live.parts,
                                       options);
  last = &live;
  return absl::OkStatus();
}

void ProgramRunner::ScatterBuffer(int index, const ProgramOp& op, Live& live, TestBuffer& buffer) {
  DrawRanges(index, op, live);
  if (live.ranges == nullptr) return;
  const size_t bytes = static_cast<size_t>(BytesOf(live.ranges->total(), op.dtype));
  const std::vector<std::byte> end_to_end(buffer.data(), buffer.data() + bytes);
  CopyToRanges(*live.ranges, end_to_end.data(), buffer.data(), SizeOf(op.dtype));
}

// Every rank that shares the image takes part in the barrier, even if its last gather into the image has
// ended.
absl::Status ProgramRunner::SubmitSharedGather(int index, const ProgramOp& op, Live& live) {
  const ProcessGroup& group = op.whole_world ? world_ : shard_;
  live.parts = PartsOf(op, group.size());
  const int64_t own = live.parts[static_cast<size_t>(group.group_rank)];
  WEFT_ASSIGN_OR_RETURN(live.input, MakeBuffer(op, own));
  Fill(index, op, 0, own, live.input.data());
  Live*& last = LastFiller(op);
  if (last != nullptr) {
    WEFT_RETURN_IF_ERROR(last->work.Wait());
    WEFT_RETURN_IF_ERROR(Check(*last));
  }
  OpOptions options = Options(index, op);
  live.readers_done = engine().Barrier(op.whole_world ? node_readers_lane_ : shard_readers_lane_, options);
  if (rules_.gate_images) options.gate = &live.readers_done;
  const LaneId lane = op.whole_world ? world_gather_lane_ : gather_lane_;
  std::byte* image = shared_images_[SharedImage(op)].data();
  DrawRanges(index, op, live);
  live.work = live.ranges != nullptr
                  ? engine().AllGatherShared(lane, live.input.data(), image, op.dtype, live.ranges, options)
                  : engine().AllGatherShared(lane, live.input.data(), image, op.dtype, Sum(live.parts),
                                             live.parts, options);
  last = &live;
  return absl::OkStatus();
}

// The delta base of a part has values of the same operation, but of another range.
absl::Status ProgramRunner::SubmitDeltaGather(int index, const ProgramOp& op, Live& live) {
  const ProcessGroup& group = op.whole_world ? world_ : shard_;
  live.parts = PartsOf(op, group.size());
  const int64_t own = live.parts[static_cast<size_t>(group.group_rank)];
  WEFT_ASSIGN_OR_RETURN(live.input, MakeBuffer(op, own));
  WEFT_ASSIGN_OR_RETURN(live.output, MakeBuffer(op, Sum(live.parts)));
  for (int member = 0; member < group.size(); ++member) {
    ProgramValues::Fill(index, op.dtype, group.ranks[static_cast<size_t>(member)], ProgramValues::kDeltaBase,
                        live.parts[static_cast<size_t>(member)], live.output.At(Sum(live.parts, member)));
  }
  Fill(index, op, ProgramValues::kDeltaBase, own, live.input.data());
  Fill(index, op, 0, own, live.output.At(Sum(live.parts, group.group_rank)));
  ScatterBuffer(index, op, live, live.output);
  const LaneId lane = op.whole_world ? world_gather_lane_ : gather_lane_;
  live.work = live.ranges != nullptr
                  ? engine().AllGatherDelta(lane, live.input.data(), live.output.data(), live.ranges,
                                            Options(index, op))
                  : engine().AllGatherDelta(lane, live.input.data(), live.output.data(), Sum(live.parts),
                                            live.parts, Options(index, op));
  return absl::OkStatus();
}

absl::Status ProgramRunner::SubmitReduction(int index, const ProgramOp& op, Live& live) {
  live.parts = PartsOf(op, shard_.size());
  const int64_t own = live.parts[static_cast<size_t>(shard_.group_rank)];
  WEFT_ASSIGN_OR_RETURN(live.input, MakeBuffer(op, Sum(live.parts)));
  WEFT_ASSIGN_OR_RETURN(live.output, MakeBuffer(op, own));
  Fill(index, op, 0, Sum(live.parts), live.input.data());
  ScatterBuffer(index, op, live, live.input);
  live.work = live.ranges != nullptr
                  ? engine().ReduceScatter(scatter_lane_, live.input.data(), live.output.data(), op.dtype,
                                           ReduceOp::kSum, live.ranges, Options(index, op))
                  : engine().ReduceScatter(scatter_lane_, live.input.data(), live.output.data(), op.dtype,
                                           Sum(live.parts), ReduceOp::kSum, live.parts, Options(index, op));
  live.continue_later = !rules_.submit_in_program_order;
  if (!live.continue_later) Continue(live);
  return absl::OkStatus();
}

void ProgramRunner::Continue(Live& live) {
  const ProgramOp& op = program_.ops[static_cast<size_t>(live.op)];
  const int64_t own = live.parts[static_cast<size_t>(shard_.group_rank)];
  live.continue_later = false;
  live.continued = engine().AllReduce(reduce_lane_, live.output.data(), live.output.data(), op.dtype, own,
                                      ReduceOp::kSum, Options(live.op, op), &live.work);
}

void ProgramRunner::ContinueReadyReductions() {
  for (const auto& live : live_) {
    if (live->continue_later && live->work.Test()) Continue(*live);
  }
}

absl::Status ProgramRunner::SubmitAllReduce(int index, const ProgramOp& op, Live& live) {
  WEFT_ASSIGN_OR_RETURN(live.output, MakeBuffer(op, op.count));
  Fill(index, op, 0, op.count, live.output.data());
  live.work = engine().AllReduce(context_lane_, live.output.data(), live.output.data(), op.dtype, op.count,
                                 ReduceOp::kSum, Options(index, op));
  return absl::OkStatus();
}

absl::Status ProgramRunner::SubmitExchange(int index, const ProgramOp& op, Live& live) {
  std::vector<int64_t> sent;
  for (int peer = 0; peer < world_.size(); ++peer) {
    sent.push_back(ExchangeCount(op, bootstrap_.rank(), peer));
    live.parts.push_back(ExchangeCount(op, peer, bootstrap_.rank()));
  }
  WEFT_ASSIGN_OR_RETURN(live.input, MakeBuffer(op, Sum(sent)));
  WEFT_ASSIGN_OR_RETURN(live.output, MakeBuffer(op, Sum(live.parts)));
  for (int peer = 0; peer < world_.size(); ++peer) {
    Fill(index, op, ProgramValues::ExchangeBegin(peer), sent[static_cast<size_t>(peer)],
         live.input.At(Sum(sent, peer)));
  }
  live.work = engine().AllToAll(context_lane_, live.input.data(), sent, live.output.data(), live.parts,
                                op.dtype, Options(index, op));
  return absl::OkStatus();
}

absl::Status ProgramRunner::MakeStridedParts(int index, const ProgramOp& op, Live& live) {
  const int me = bootstrap_.rank();
  const auto make = [&](int from, int to) {
    return StridedPart::Make(*fixture_->pool, op.node_memory, op.dtype,
                             DrawPartShape(static_cast<uint64_t>(index), from, to, op.count), layouts_);
  };
  for (int peer = 0; peer < world_.size(); ++peer) {
    WEFT_ASSIGN_OR_RETURN(live.sent.emplace_back(), make(me, peer));
    live.sent.back().Fill(me, peer);
    WEFT_ASSIGN_OR_RETURN(live.received.emplace_back(), make(peer, me));
  }
  return absl::OkStatus();
}

absl::Status ProgramRunner::SubmitStridedExchange(int index, const ProgramOp& op, Live& live) {
  WEFT_RETURN_IF_ERROR(MakeStridedParts(index, op, live));
  std::vector<TensorView> sends, receives;
  for (const StridedPart& part : live.sent) sends.push_back(part.view());
  for (const StridedPart& part : live.received) receives.push_back(part.view());
  live.work = engine().AllToAll(context_lane_, sends, receives, op.dtype, Options(index, op));
  return absl::OkStatus();
}

absl::Status ProgramRunner::SubmitShift(int index, const ProgramOp& op, Live& live) {
  WEFT_RETURN_IF_ERROR(MakeStridedParts(index, op, live));
  const int ranks = world_.size();
  const int to = (bootstrap_.rank() + op.root) % ranks;
  const int from = (bootstrap_.rank() + ranks - op.root % ranks) % ranks;
  live.shifted_from = from;
  live.work = engine().SendReceive(context_lane_, live.sent[static_cast<size_t>(to)].view(), to,
                                   live.received[static_cast<size_t>(from)].view(), from, Options(index, op));
  return absl::OkStatus();
}

absl::Status ProgramRunner::SubmitBroadcast(int index, const ProgramOp& op, Live& live) {
  const int root = op.root % world_.size();
  WEFT_ASSIGN_OR_RETURN(live.output, MakeBuffer(op, op.count));
  if (bootstrap_.rank() == root) Fill(index, op, 0, op.count, live.output.data());
  live.work =
      engine().Broadcast(control_lane_, live.output.data(), op.dtype, op.count, root, Options(index, op));
  return absl::OkStatus();
}

absl::Status ProgramRunner::AddMessage(const ProgramMessage& program, bool is_receive, const ProgramOp& op,
                                       Live& live) {
  Live::Message& message = live.messages.emplace_back();
  message.program = program;
  message.is_receive = is_receive;
  if (random_.Chance(50)) {
    WEFT_ASSIGN_OR_RETURN(message.node, fixture_->pool->Acquire(static_cast<size_t>(program.bytes) + 1));
  } else {
    message.own.resize(static_cast<size_t>(program.bytes) + 1);
  }
  OpOptions options;
  options.priority = op.priority;
  const int me = bootstrap_.rank();
  if (is_receive) {
    const int from = program.any_source ? kAnySource : program.from;
    message.work = engine().Receive({from, program.tag, /*channel=*/3}, message.data(), DType::kU8,
                                    program.bytes, options);
    return absl::OkStatus();
  }
  FillMessage(me, program.to, program.tag, message.data(), program.bytes);
  message.work = engine().Send({program.to, program.tag, /*channel=*/3}, message.data(), DType::kU8,
                               program.bytes, options);
  return absl::OkStatus();
}

// A rank submits its sends first, or its receives. Ends of one tag keep their order.
absl::Status ProgramRunner::SubmitMessages(int index, const ProgramOp& op, Live& live) {
  const bool receives_first = random_.Chance(50);
  for (const bool is_receive : {receives_first, !receives_first}) {
    for (const ProgramMessage& message : MessagesOf(op, index, world_.size())) {
      if ((is_receive ? message.to : message.from) != bootstrap_.rank()) continue;
      WEFT_RETURN_IF_ERROR(AddMessage(message, is_receive, op, live));
    }
  }
  return absl::OkStatus();
}

absl::Status ProgramRunner::Submit(int index) {
  ProgramOp op = program_.ops[static_cast<size_t>(index)];
  if (mistake_ != nullptr && index == static_cast<int>(program_.ops.size()) / 2) {
    using Kind = ProgramMistake::Kind;
    if (mistake_->kind == Kind::kOp) op.kind = ProgramOp::Kind::kExchange;
    if (mistake_->kind == Kind::kCount) op.count += 1;
    if (mistake_->kind == Kind::kDType) op.dtype = DType::kBF16;
    if (mistake_->kind == Kind::kOrder) ++index;
  }
  live_.push_back(std::make_unique<Live>());
  Live& live = *live_.back();
  live.op = index;
  switch (op.kind) {
    case ProgramOp::Kind::kGatherImage:
      return op.shared ? SubmitSharedGather(index, op, live) : SubmitGather(index, op, live);
    case ProgramOp::Kind::kGatherDelta:
      return SubmitDeltaGather(index, op, live);
    case ProgramOp::Kind::kReduceGradients:
      return SubmitReduction(index, op, live);
    case ProgramOp::Kind::kAllReduce:
      return SubmitAllReduce(index, op, live);
    case ProgramOp::Kind::kExchange:
      return SubmitExchange(index, op, live);
    case ProgramOp::Kind::kStridedExchange:
      return SubmitStridedExchange(index, op, live);
    case ProgramOp::Kind::kShift:
      return SubmitShift(index, op, live);
    case ProgramOp::Kind::kBroadcast:
      return SubmitBroadcast(index, op, live);
    case ProgramOp::Kind::kMessages:
      return SubmitMessages(index, op, live);
    case ProgramOp::Kind::kBarrier:
      break;
  }
  ++arrivals_[static_cast<size_t>(index)];
  live.work = engine().Barrier(control_lane_, Options(index, op));
  return absl::OkStatus();
}

}  // namespace weft::testing
