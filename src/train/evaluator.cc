#include "src/train/evaluator.h"

#include <numeric>
#include <utility>
#include <vector>

#include "src/train/batch_reader.h"
#include "src/train/world_group.h"
#include "weft/core/status.h"

namespace weft {

Evaluator::Evaluator(CommEngine& engine, LlamaModel& model, const Corpus& corpus, const EvaluationPlan& plan)
    : engine_(engine),
      model_(model),
      corpus_(corpus),
      plan_(plan),
      pool_(engine.heap(), "evaluation losses") {}

absl::StatusOr<std::unique_ptr<Evaluator>> Evaluator::Create(CommEngine& engine, LlamaModel& model,
                                                             const Corpus& corpus,
                                                             const EvaluationPlan& plan) {
  std::unique_ptr<Evaluator> evaluator(new Evaluator(engine, model, corpus, plan));
  WEFT_ASSIGN_OR_RETURN(evaluator->lane_,
                        engine.AddLane(WorldGroup(engine.bootstrap()), LanePurpose::kControl));
  WEFT_ASSIGN_OR_RETURN(evaluator->losses_,
                        evaluator->pool_.Acquire(sizeof(double) * static_cast<size_t>(plan.passes())));
  return evaluator;
}

absl::StatusOr<double> Evaluator::Loss() {
  const int rank = engine_.bootstrap().rank();
  for (int64_t round = 0; round < plan_.rounds(); ++round) {
    const SequenceRange windows = plan_.Windows(rank, round);
    WEFT_ASSIGN_OR_RETURN(const double loss, RunPass(windows));
    if (windows.count > 0) {
      losses()[plan_.PassOf(rank) + round] = loss;
    }
  }
  WEFT_RETURN_IF_ERROR(GatherLosses());
  return std::accumulate(losses(), losses() + plan_.passes(), 0.0) / static_cast<double>(plan_.targets());
}

absl::StatusOr<double> Evaluator::RunPass(SequenceRange windows) {
  const BatchOrder in_order{plan_.windows, /*shuffle=*/false, /*seed=*/0};
  WEFT_ASSIGN_OR_RETURN(Microbatch batch, ReadMicrobatch(corpus_, in_order, windows, plan_.seq_len,
                                                         model_.config().vocab_size));
  Invocation invocation(/*gradients=*/false);
  WEFT_ASSIGN_OR_RETURN(const Tensors sum,
                        model_.Forward(invocation, {std::move(batch.inputs), std::move(batch.targets)}));
  return *sum[0].As<float>();
}

absl::Status Evaluator::GatherLosses() {
  std::vector<int64_t> counts(static_cast<size_t>(plan_.ranks));
  for (int rank = 0; rank < plan_.ranks; ++rank) {
    counts[static_cast<size_t>(rank)] = plan_.PassOf(rank + 1) - plan_.PassOf(rank);
  }
  OpOptions options;
  options.label = "evaluation_losses";
  options.priority = Priority::kCritical;
  // Only moved, so that their type does not matter.
  static_assert(sizeof(double) == sizeof(int64_t));
  Work work = engine_.AllGather(lane_, losses() + plan_.PassOf(engine_.bootstrap().rank()), losses(),
                                DType::kI64, plan_.passes(), counts, options);
  return work.WaitReleased();
}

}  // namespace weft
