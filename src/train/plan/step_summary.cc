#include "src/train/plan/step_summary.h"

#include <cstring>

#include "weft/core/status.h"
#include "weft/mesh/world_group.h"

namespace weft {

IndexerSums& IndexerSums::operator+=(const IndexerSums& other) {
  loss += other.loss;
  queries += other.queries;
  selected_mass += other.selected_mass;
  mass_pairs += other.mass_pairs;
  return *this;
}

StepSummaries::StepSummaries(const Bootstrap& bootstrap, NodeHeap& heap, CommEngine& engine,
                             bool has_indexers)
    : bootstrap_(bootstrap),
      engine_(engine),
      bytes_(has_indexers ? sizeof(StepSummary) : offsetof(StepSummary, indexers)),
      pool_(heap, "step summaries") {}

absl::StatusOr<std::unique_ptr<StepSummaries>> StepSummaries::Create(const Bootstrap& bootstrap,
                                                                     NodeHeap& heap, CommEngine& engine,
                                                                     bool has_indexers) {
  std::unique_ptr<StepSummaries> summaries(new StepSummaries(bootstrap, heap, engine, has_indexers));
  WEFT_ASSIGN_OR_RETURN(summaries->lane_, engine.SharedLane(WorldGroup(bootstrap), LanePurpose::kControl));
  WEFT_ASSIGN_OR_RETURN(summaries->gathered_,
                        summaries->pool_.Acquire(summaries->bytes_ * static_cast<size_t>(bootstrap.size())));
  return summaries;
}

char* StepSummaries::SummaryOf(int rank) const {
  return reinterpret_cast<char*>(gathered_.data()) + bytes_ * static_cast<size_t>(rank);
}

absl::StatusOr<StepSummary> StepSummaries::Sum(const StepSummary& own) {
  // A gather instead of a reduction: each rank adds the values in the order of ranks, so all get equal bits.
  std::memcpy(SummaryOf(bootstrap_.rank()), &own, bytes_);
  OpOptions options;
  options.label = "step_summaries";
  options.priority = Priority::kCritical;
  const auto words = static_cast<int64_t>(bytes_ / sizeof(int64_t));
  Work work = engine_.AllGather(lane_, SummaryOf(bootstrap_.rank()), SummaryOf(0), DType::kI64,
                                words * bootstrap_.size(), {}, options);
  WEFT_RETURN_IF_ERROR(work.WaitReleased());
  StepSummary all;
  all.flags.can_advance_save = true;
  for (int rank = 0; rank < bootstrap_.size(); ++rank) {
    StepSummary summary;
    std::memcpy(&summary, SummaryOf(rank), bytes_);
    all.loss += summary.loss;
    all.indexers += summary.indexers;
    const StepFlags& flags = summary.flags;
    all.flags.stop = all.flags.stop || flags.stop;
    all.flags.save = all.flags.save || flags.save;
    all.flags.can_advance_save = all.flags.can_advance_save && flags.can_advance_save;
  }
  return all;
}

}  // namespace weft
