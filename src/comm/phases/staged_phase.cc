#include "src/comm/phases/staged_phase.h"

#include <algorithm>
#include <utility>

#include "src/comm/base/copy_bytes.h"
#include "src/comm/base/descriptor.h"
#include "src/comm/phases/reduce_phase.h"
#include "weft/core/status.h"

namespace weft {

StagedPhase::StagedPhase(OperationContext& context, const CollectivePlan& plan, int64_t piece_elements,
                         const Memory& memory)
    : plan_(plan),
      piece_elements_(piece_elements),
      element_bytes_(SizeOf(plan.dtype)),
      size_(context.placement.size()),
      me_(context.placement.me()),
      peers_(context.placement.local_peers()) {
  WEFT_CHECK(plan.parts.ranges == nullptr, "a staged phase got parts in ranges");
  if (Reduces(plan.kind)) PlanReduce(context, memory);
  if (plan.kind != OpKind::kReduceScatter) PlanGather(context, memory);
}

void StagedPhase::AddWriter(OperationContext& context, int part, const std::byte* source, std::byte* ring,
                            std::vector<int> readers, int counter) {
  const Slicing slicing = SlicingOf(part);
  context.counters.copied_bytes += slicing.elements * static_cast<int64_t>(element_bytes_);
  writers_.push_back({CopyStream(slicing, plan_.dtype, MemoryAt(source), RingAt(ring), /*nontemporal=*/false),
                      std::move(readers), counter});
}

void StagedPhase::PlanReduce(OperationContext& context, const Memory& memory) {
  const size_t ring_bytes = RingBytes(piece_elements_, plan_.dtype);
  std::vector<ReduceStream::Leaf> leaves;
  for (int member = 0; member < size_; ++member) {
    const Published& input = memory.inputs[static_cast<size_t>(member)];
    const bool crosses = !context.placement.IsInDomain(member);
    if (member == me_) {
      leaves.push_back({PartOf(plan_.input, me_), plan_.dtype});
    } else if (input.in_ring) {
      leaves.push_back({RingAt(input.data + RingIndex(member, me_) * ring_bytes), plan_.dtype, crosses});
      reduced_from_.push_back(member);
    } else {
      leaves.push_back({PartOf(input.data, me_), plan_.dtype, crosses});
    }
  }
  const bool gathers = plan_.kind == OpKind::kAllReduce;
  ReduceTarget target =
      TargetOf(context.placement, plan_, gathers ? PartOf(plan_.output, me_).base : plan_.output);
  if (gathers) target.nontemporal = false;  // The result is read at once.
  reduce_.emplace(SlicingOf(me_), ReduceProgramOfRanks(0, size_), std::move(leaves), plan_.reduce,
                  std::move(target));
  reduce_->CountCrossing(context);
  if (memory.input_rings == nullptr) return;
  for (const int peer : peers_) {
    AddWriter(context, peer, PartOf(plan_.input, peer).base,
              memory.input_rings + RingIndex(me_, peer) * ring_bytes, {peer}, ReduceCounter(peer));
  }
}

void StagedPhase::PlanGather(OperationContext& context, const Memory& memory) {
  const bool reduces = reduce_.has_value();
  const bool nontemporal = ShouldBypassCaches(static_cast<size_t>(plan_.parts.total()) * element_bytes_ *
                                              static_cast<size_t>(size_));
  const SliceMemory own_part = PartOf(plan_.output, me_);
  const std::byte* own_source = reduces ? own_part.base : plan_.input;
  if (std::byte* ring = reduces ? memory.output_ring : memory.input_rings) {
    own_writer_ = writers_.size();
    AddWriter(context, me_, own_source, ring, peers_, GatherCounter(me_));
  }
  if (own_source != own_part.base && SlicingOf(me_).elements > 0) {
    own_copy_.emplace(SlicingOf(me_), plan_.dtype, MemoryAt(own_source), own_part, nontemporal);
  }
  for (const int peer : peers_) {
    const Published& published = (reduces ? memory.outputs : memory.inputs)[static_cast<size_t>(peer)];
    SliceMemory source = RingAt(published.data);
    std::optional<int> counter = GatherCounter(peer);
    if (!published.in_ring) {
      source = reduces ? PartOf(published.data, peer) : MemoryAt(published.data);
      counter = reduces ? std::optional(ReduceCounter(peer)) : std::nullopt;
    }
    pulls_.push_back(
        {CopyStream(SlicingOf(peer), plan_.dtype, source, PartOf(plan_.output, peer), nontemporal), peer,
         counter, published.in_ring});
    if (context.placement.IsInDomain(peer)) continue;
    pulls_.back().stream.SetCrossesDomains();
    context.counters.cross_domain_bytes += SlicingOf(peer).elements * static_cast<int64_t>(element_bytes_);
  }
}

int64_t StagedPhase::ReadByAll(const OperationContext& context, const RingWriter& writer) const {
  int64_t read = kAllSlices;
  for (const int reader : writer.readers) read = std::min(read, context.CounterOf(reader, writer.counter));
  return read;
}

bool StagedPhase::StepWriters(OperationContext& context) {
  bool advanced = false;
  for (size_t i = 0; i < writers_.size(); ++i) {
    RingWriter& writer = writers_[i];
    if (writer.announced < writer.stream.done()) {
      writer.announced = writer.stream.done();
      context.Announce(writer.counter, writer.announced, writer.readers);
      advanced = true;
    }
    if (writer.stream.finished()) continue;
    const int64_t produced = reduce_ && own_writer_ == i ? reduce_->done() : kAllSlices;
    advanced |= writer.stream.Step(context, std::min(produced, ReadByAll(context, writer) + kRingPieces));
  }
  return advanced;
}

bool StagedPhase::StepReduce(OperationContext& context) {
  bool advanced = false;
  if (reduced_announced_ < reduce_->done()) {
    reduced_announced_ = reduce_->done();
    context.Announce(ReduceCounter(me_), reduced_announced_, peers_);
    advanced = true;
  }
  if (reduce_->finished()) return advanced;
  int64_t available = kAllSlices;
  for (const int peer : reduced_from_)
    available = std::min(available, context.CounterOf(peer, ReduceCounter(me_)));
  return reduce_->Step(context, available) || advanced;
}

bool StagedPhase::StepGather(OperationContext& context) {
  bool advanced = false;
  for (Pull& pull : pulls_) {
    if (pull.announced < pull.stream.done()) {
      pull.announced = pull.stream.done();
      if (pull.is_from_ring) context.Announce(GatherCounter(pull.owner), pull.announced, {pull.owner});
      advanced = true;
    }
    if (pull.stream.finished()) continue;
    const int64_t available = pull.counter ? context.CounterOf(pull.owner, *pull.counter) : kAllSlices;
    advanced |= pull.stream.Step(context, available);
  }
  if (own_copy_) {
    // After the copy to the ring, which brings the piece into a cache.
    const int64_t available = own_writer_ ? writers_[*own_writer_].stream.done() : kAllSlices;
    advanced |= own_copy_->Step(context, available);
  }
  return advanced;
}

bool StagedPhase::Step(OperationContext& context) {
  bool advanced = StepWriters(context);
  if (reduce_) advanced |= StepReduce(context);
  return StepGather(context) || advanced;
}

bool StagedPhase::complete() const {
  const auto announced = [](const auto& part) {
    return part.stream.finished() && part.announced == part.stream.done();
  };
  return std::all_of(writers_.begin(), writers_.end(), announced) &&
         std::all_of(pulls_.begin(), pulls_.end(), announced) &&
         (!reduce_ || (reduce_->finished() && reduced_announced_ == reduce_->done())) &&
         (!own_copy_ || own_copy_->finished());
}

void StagedPhase::AddAwaited(const OperationContext& context, std::set<int>& ranks) const {
  const auto add = [&](int member) { ranks.insert(context.placement.BootstrapRank(member)); };
  for (const RingWriter& writer : writers_) {
    for (const int reader : writer.readers) {
      const int64_t read = context.CounterOf(reader, writer.counter);
      if (!writer.stream.finished() && read + kRingPieces <= writer.stream.done()) add(reader);
    }
  }
  if (reduce_ && !reduce_->finished()) {
    for (const int peer : reduced_from_) {
      if (context.CounterOf(peer, ReduceCounter(me_)) <= reduce_->done()) add(peer);
    }
  }
  for (const Pull& pull : pulls_) {
    if (!pull.stream.finished()) add(pull.owner);
  }
}

}  // namespace weft
