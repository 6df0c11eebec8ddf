#include "src/comm/collectives/collective.h"

#include <algorithm>
#include <new>

#include <absl/strings/str_cat.h>

#include "weft/core/status.h"

namespace weft {
namespace {

absl::Status Mismatch(const OperationContext& context, int peer_rank, const Descriptor& theirs) {
  const Descriptor& mine = context.record->descriptor;
  if (theirs.leaves) return HasLeft(peer_rank, "submitted", *context.record);
  const std::string& label = context.record->label;
  return absl::FailedPreconditionError(
      absl::StrCat("lane ", ToAbsl(context.record->lane_name), ": rank ",
                   context.placement.BootstrapRank(context.placement.me()), " submitted ", ToString(mine),
                   label.empty() ? "" : absl::StrCat(" ('", label, "')"), ", rank ", peer_rank, " submitted ",
                   ToString(theirs), MismatchDetails(mine, theirs),
                   "; all ranks of a lane must submit the same operations in the same order"));
}

const std::byte* MapShared(const NodeLink& node, const NodeAddress& address) {
  return address == Descriptor::kNoAddress ? nullptr : node.Map(address);
}

absl::StatusOr<RangeCopy> WholeCopy(DType dtype, int64_t elements) {
  const TensorView run = TensorView::Contiguous(nullptr, dtype, {elements});
  return RangeCopy::Make(run, run);
}

}  // namespace

int64_t Collective::SliceElements(const OperationContext& context, DType dtype) {
  const int64_t bytes =
      context.placement.spans_nodes() ? context.options.slice_bytes : context.options.piece_bytes;
  return std::max<int64_t>(1, bytes / static_cast<int64_t>(SizeOf(dtype)));
}

int64_t Collective::RingPieceElements(const OperationContext& context) const {
  const int64_t bytes = std::min(kMaxRingPieceBytes, context.options.piece_bytes);
  return std::max<int64_t>(1, bytes / static_cast<int64_t>(SizeOf(plan_.dtype)));
}

// Rings pay if they are smaller than the parts. Otherwise a part is staged whole, in one step.
bool Collective::UsesRings(const OperationContext& context) const {
  if (!takes_rings()) return false;
  const PartLayout::Elements& counts = plan_.parts.counts;
  const int64_t ring_elements = kRingPieces * RingPieceElements(context);
  return !context.placement.spans_nodes() && plan_.parts.ranges == nullptr &&
         std::any_of(counts.begin(), counts.end(), [&](int64_t count) { return count > ring_elements; });
}

absl::Status Collective::PrepareMemory(OperationContext& context) {
  caller_output_ = plan_.output;
  const auto bytes = static_cast<size_t>(BytesOf(plan_.output_elements(context.placement.me()), plan_.dtype));
  if (sharing_.output && bytes > 0 && !context.node.AddressOf(plan_.output, bytes)) {
    if (UsesRings(context)) {
      const size_t ring_bytes = StagedPhase::RingBytes(RingPieceElements(context), plan_.dtype);
      WEFT_ASSIGN_OR_RETURN(output_ring_, context.scratch.Acquire(ring_bytes));
    } else {
      WEFT_ASSIGN_OR_RETURN(staged_output_, context.scratch.Acquire(bytes));
      plan_.output = staged_output_.data();
    }
  }
  return StageInput(context);
}

absl::Status Collective::StageViews(OperationContext& context) {
  for (const SourceView& view : plan_.views) view_data_.push_back(static_cast<const std::byte*>(view.data));
  if (!sharing_.input) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(view_rows_, context.scratch.Acquire(plan_.views.size() * sizeof(NodeAddress)));
  auto* rows = new (view_rows_.data()) NodeAddress[plan_.views.size()];
  SetSharedInput(view_rows_.data());
  const auto bytes_of = [&](size_t view) {
    return static_cast<size_t>(BytesOf(plan_.views[view].range.count, plan_.dtype));
  };
  std::vector<size_t> unreadable;
  size_t staged_bytes = 0;
  for (size_t i = 0; i < plan_.views.size(); ++i) {
    rows[i] = Descriptor::kNoAddress;
    if (view_data_[i] == nullptr || bytes_of(i) == 0) continue;
    if (const auto address = context.node.AddressOf(view_data_[i], bytes_of(i))) {
      rows[i] = *address;
      continue;
    }
    unreadable.push_back(i);
    staged_bytes += RoundUpToCacheLine(bytes_of(i));
  }
  if (unreadable.empty()) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(staged_input_, context.scratch.Acquire(staged_bytes));
  std::byte* next = staged_input_.data();
  for (const size_t i : unreadable) {
    WEFT_ASSIGN_OR_RETURN(RangeCopy copy, WholeCopy(plan_.dtype, plan_.views[i].range.count));
    AddStaging(context, std::move(copy), view_data_[i], next);
    view_data_[i] = next;
    rows[i] = *context.node.AddressOf(next);
    next += RoundUpToCacheLine(bytes_of(i));
  }
  return absl::OkStatus();
}

void Collective::ReadViewTables(OperationContext& context) {
  const size_t element_bytes = SizeOf(plan_.dtype);
  view_tables_.resize(static_cast<size_t>(context.placement.size()));
  const auto add = [&](int member, std::vector<const std::byte*> data) {
    if (std::find(data.begin(), data.end(), nullptr) != data.end() && zeros_.empty()) {
      zeros_.resize(static_cast<size_t>(SliceElements(context, plan_.dtype)) * element_bytes);
    }
    view_tables_[static_cast<size_t>(member)].emplace(plan_.views, std::move(data), element_bytes, zeros_);
  };
  add(context.placement.me(), std::move(view_data_));
  for (const int peer : context.placement.local_peers()) {
    const auto* rows = reinterpret_cast<const NodeAddress*>(InputOf(context, peer));
    std::vector<const std::byte*> data;
    for (size_t i = 0; i < plan_.views.size(); ++i) data.push_back(MapShared(context.node, rows[i]));
    add(peer, std::move(data));
  }
}

absl::Status Collective::StageInput(OperationContext& context) {
  if (!plan_.views.empty()) return StageViews(context);
  const int64_t elements = plan_.input_elements(context.placement.me());
  const auto bytes = static_cast<size_t>(BytesOf(elements, plan_.dtype));
  if (!sharing_.input || bytes == 0 || context.node.AddressOf(plan_.input, bytes)) return absl::OkStatus();
  if (UsesRings(context)) {
    const size_t rings = plan_.is_gather() ? 1 : context.placement.local_peers().size();
    const size_t ring_bytes = StagedPhase::RingBytes(RingPieceElements(context), plan_.dtype);
    WEFT_ASSIGN_OR_RETURN(input_rings_, context.scratch.Acquire(rings * ring_bytes));
    return absl::OkStatus();
  }
  WEFT_ASSIGN_OR_RETURN(staged_input_, context.scratch.Acquire(bytes));
  WEFT_ASSIGN_OR_RETURN(RangeCopy copy, WholeCopy(plan_.dtype, elements));
  AddStaging(context, std::move(copy), plan_.input, staged_input_.data());
  plan_.input = staged_input_.data();
  return absl::OkStatus();
}

std::unique_ptr<StagedPhase> Collective::MakeStagedPhase(OperationContext& context) const {
  if (!UsesRings(context)) return nullptr;
  StagedPhase::Memory memory{input_rings_.data(), output_ring_.data(), {}, {}};
  bool any_ring = false;
  for (int member = 0; member < context.placement.size(); ++member) {
    const Descriptor& published = DescriptorOf(context, member);
    memory.inputs.push_back({MapShared(context.node, published.input), published.input_in_ring});
    memory.outputs.push_back({MapShared(context.node, published.output), published.output_in_ring});
    any_ring |= published.input_in_ring || published.output_in_ring;
  }
  if (!any_ring) return nullptr;
  return std::make_unique<StagedPhase>(context, plan_, RingPieceElements(context), memory);
}

void Collective::AddStaging(OperationContext& context, RangeCopy copy, const std::byte* source,
                            std::byte* target) {
  const auto element_bytes = static_cast<int64_t>(SizeOf(copy.dtype()));
  context.counters.copied_bytes += copy.elements() * element_bytes;
  const int64_t piece = std::max<int64_t>(1, context.options.piece_bytes / element_bytes);
  // SliceMemory has no const form. The source is only read.
  staging_.emplace_back(std::move(copy), piece, SliceMemory::Strided(const_cast<std::byte*>(source)), target);
}

bool Collective::StepStaging(OperationContext& context) {
  bool advanced = false;
  for (RangeStream& stream : staging_) advanced |= stream.Step(context, kAllSlices);
  return advanced;
}

bool Collective::IsStagingDone() const {
  return std::all_of(staging_.begin(), staging_.end(), [](const RangeStream& s) { return s.finished(); });
}

void Collective::Publish(OperationContext& context) {
  stage_ = Stage::kAwaitingPeers;
  Descriptor& descriptor = context.record->descriptor;
  descriptor.input_in_ring = static_cast<bool>(input_rings_);
  descriptor.output_in_ring = static_cast<bool>(output_ring_);
  const std::byte* input = input_rings_ ? input_rings_.data() : plan_.input;
  const std::byte* output = output_ring_ ? output_ring_.data() : plan_.output;
  descriptor.input = context.node.AddressOf(input).value_or(Descriptor::kNoAddress);
  descriptor.output = context.node.AddressOf(output).value_or(Descriptor::kNoAddress);
  node_hash_ = HashOnNode(descriptor);
  context.node.Publish(context.record->lane, descriptor);
}

absl::StatusOr<bool> Collective::ComparePeer(const OperationContext& context, int peer) const {
  const int rank = context.placement.BootstrapRank(peer);
  const Descriptor& mine = context.record->descriptor;
  const std::optional<Descriptor> theirs = context.node.Peek(context.record->lane, rank, mine.sequence);
  if (!theirs) return false;
  if (IsSameCollectiveOnNode(*theirs, mine)) return true;
  return Mismatch(context, rank, *theirs);
}

// See Note [Arrivals].
absl::StatusOr<bool> Collective::AwaitArrivals(OperationContext& context) {
  const std::vector<int>& peers = context.placement.local_peers();
  if (peers.empty()) return true;
  const Descriptor& mine = context.record->descriptor;
  const NodeLink::LocalGroup group = NodeLink::LocalGroupOf(context.record->lane, context.placement);
  NodeLink::Arrived arrived = NodeLink::Arrived::kSome;
  const bool arrives = arrival_ == Arrival::kNone;
  if (arrives) {
    const auto counted = context.node.Arrive(group, mine.sequence, node_hash_);
    if (counted) {
      arrived = *counted;
      const bool is_last = arrived == NodeLink::Arrived::kAllEqual || arrived == NodeLink::Arrived::kUnequal;
      arrival_ = is_last ? Arrival::kLast : Arrival::kCounted;
    }
    // Peers that published the first operation before the node leader opened the lane could not arrive.
    const bool opens = context.placement.me() == context.placement.node_leader() && mine.sequence == 1;
    if (opens || (arrived_last() && wakes_peers_on_arrival())) context.RingLocalPeers();
  }
  // The next rank usually arrives soon. Reading the counters now would take their cache line from it. A rank
  // that shares its hardware thread yields before it looks again, so it looks now.
  if (arrives && arrival_ == Arrival::kCounted && !context.shares_core) return false;
  if (arrival_ != Arrival::kNone && arrived == NodeLink::Arrived::kSome)
    arrived = context.node.HaveArrived(group, mine.sequence, node_hash_);
  switch (arrived) {
    case NodeLink::Arrived::kAllEqual:
      return true;
    case NodeLink::Arrived::kUnequal:
    case NodeLink::Arrived::kTooMany: {
      // Either operations that match have different hashes, or ranks of another group were counted.
      bool all_published = true;
      for (const int peer : peers) {
        WEFT_ASSIGN_OR_RETURN(const bool is_published, ComparePeer(context, peer));
        all_published &= is_published;
      }
      return all_published;
    }
    case NodeLink::Arrived::kSome:
      break;
  }
  // While ranks are missing, each later step compares the descriptor of another one. That takes more lines,
  // so a rank with a hardware thread for itself begins one step later.
  const bool is_first_look = !arrives && std::exchange(is_early_, false);
  const bool is_early = arrives || (is_first_look && !context.shares_core);
  if (arrival_ == Arrival::kCounted && is_early) return false;
  WEFT_RETURN_IF_ERROR(ComparePeer(context, peers[next_compared_++ % peers.size()]).status());
  return false;
}

Descriptor Collective::ReadDescriptor(const OperationContext& context, int peer) {
  const std::optional<Descriptor> published = context.node.Peek(
      context.record->lane, context.placement.BootstrapRank(peer), context.record->descriptor.sequence);
  WEFT_CHECK(published.has_value(), "a rank read the memory of a peer that has not published the operation");
  return *published;
}

const Descriptor& Collective::DescriptorOf(const OperationContext& context, int member) const {
  if (member == context.placement.me()) return context.record->descriptor;
  if (descriptors_.empty()) descriptors_.resize(static_cast<size_t>(context.placement.local_size()));
  std::optional<Descriptor>& known = descriptors_[static_cast<size_t>(context.placement.IndexInNode(member))];
  if (!known) known = ReadDescriptor(context, member);
  return *known;
}

absl::Status Collective::MismatchWith(const OperationContext& context, int member) const {
  return Mismatch(context, context.placement.BootstrapRank(member), DescriptorOf(context, member));
}

const std::byte* Collective::InputOf(const OperationContext& context, int member) const {
  if (member == context.placement.me()) return plan_.input;
  return MapShared(context.node, DescriptorOf(context, member).input);
}

const std::byte* Collective::OutputOf(const OperationContext& context, int member) const {
  if (member == context.placement.me()) return plan_.output;
  return MapShared(context.node, DescriptorOf(context, member).output);
}

Collective::SharedBuffers Collective::BuffersOf(const OperationContext& context, int member) const {
  if (member == context.placement.me()) return {plan_.input, plan_.output};
  const Descriptor published = ReadDescriptor(context, member);
  return {MapShared(context.node, published.input), MapShared(context.node, published.output)};
}

WholeMemory Collective::WholeInputOf(const OperationContext& context, int member) const {
  if (plan_.views.empty()) return InputOf(context, member);
  return &*view_tables_[static_cast<size_t>(member)];
}

std::vector<WholeMemory> Collective::LocalInputs(const OperationContext& context) const {
  std::vector<WholeMemory> inputs;
  inputs.reserve(static_cast<size_t>(context.placement.size()));
  for (int member = 0; member < context.placement.size(); ++member) {
    inputs.push_back(context.placement.IsLocal(member) ? WholeInputOf(context, member)
                                                       : static_cast<const std::byte*>(nullptr));
  }
  return inputs;
}

absl::Status Collective::StartUnstaging(OperationContext& context) {
  stage_ = Stage::kUnstaging;
  staging_.clear();
  if (!staged_output_) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(RangeCopy copy,
                        WholeCopy(plan_.dtype, plan_.output_elements(context.placement.me())));
  AddStaging(context, std::move(copy), staged_output_.data(), caller_output_);
  return absl::OkStatus();
}

absl::StatusOr<Operation::Progress> Collective::Step(OperationContext& context) {
  bool advanced = false;
  if (const auto mismatch = context.wire.FindMismatch(context.record->lane, context.record->descriptor)) {
    return Mismatch(context, mismatch->first, mismatch->second);
  }
  if (stage_ == Stage::kNew) {
    stage_ = Stage::kStaging;
    WEFT_RETURN_IF_ERROR(PrepareMemory(context));
    advanced = true;
  }
  if (stage_ == Stage::kStaging) {
    advanced |= StepStaging(context);
    if (IsStagingDone()) Publish(context);
  }
  if (stage_ == Stage::kAwaitingPeers) {
    WEFT_ASSIGN_OR_RETURN(const bool met, AwaitArrivals(context));
    if (met) {
      if (!plan_.views.empty()) ReadViewTables(context);
      WEFT_RETURN_IF_ERROR(BeginMove(context));
      stage_ = Stage::kMoving;
      // The last rank is about to move the data. Another poll now saves a rank that shares its hardware
      // thread from yielding. Any other rank had better watch its doorbell.
      advanced |= arrived_last() || wakes_peers_on_arrival() || context.shares_core;
    }
  }
  if (stage_ >= Stage::kMoving) {
    WEFT_ASSIGN_OR_RETURN(const bool moved, Move(context));
    advanced |= moved;
    if (stage_ == Stage::kMoving && MoveComplete()) WEFT_RETURN_IF_ERROR(StartUnstaging(context));
  }
  if (stage_ == Stage::kUnstaging) {
    advanced |= StepStaging(context);
    if (IsStagingDone()) {
      stage_ = Stage::kDone;
      advanced = true;
    }
  }
  return advanced ? Progress::kAdvanced : Progress::kNoProgress;
}

std::set<int> Collective::AwaitedRanks(const OperationContext& context) const {
  std::set<int> ranks;
  if (stage_ >= Stage::kMoving) {
    AddAwaited(context, ranks);
    return ranks;
  }
  std::set<int> peers;
  for (const int peer : context.placement.local_peers()) {
    const int rank = context.placement.BootstrapRank(peer);
    peers.insert(rank);
    if (!context.node.Peek(context.record->lane, rank, context.record->descriptor.sequence))
      ranks.insert(rank);
  }
  return ranks.empty() ? peers : ranks;  // Ranks that have published may not have been counted yet.
}

}  // namespace weft
