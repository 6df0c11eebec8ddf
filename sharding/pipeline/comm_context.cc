#include "sharding/pipeline/comm_context.h"

#include <utility>

#include "weft/core/status.h"

namespace weft {

absl::StatusOr<std::unique_ptr<CommContext>> CommContext::Create(CommEngine& engine, ProcessGroup shard_group,
                                                                 std::vector<ProcessGroup> replicate_groups,
                                                                 const Options& options) {
  auto state = std::make_unique<PipelineState>(engine);
  auto memory = std::make_unique<PipelineMemory>(*state);
  WEFT_ASSIGN_OR_RETURN(PipelineLanes lanes,
                        PipelineLanes::Create(*state, *memory, std::move(shard_group),
                                              std::move(replicate_groups), options.lanes));
  return std::unique_ptr<CommContext>(new CommContext(
      std::move(state), std::move(memory), std::make_unique<PipelineLanes>(std::move(lanes)), options));
}

absl::Status CommContext::AddMesh(ProcessGroup shard_group, std::vector<ProcessGroup> replicate_groups,
                                  const PipelineLanes::Options& options) {
  WEFT_ASSIGN_OR_RETURN(PipelineLanes lanes, PipelineLanes::Create(*state_, *memory_, std::move(shard_group),
                                                                   std::move(replicate_groups), options));
  lanes_.push_back(std::make_unique<PipelineLanes>(std::move(lanes)));
  return absl::OkStatus();
}

CommContext::CommContext(std::unique_ptr<PipelineState> state, std::unique_ptr<PipelineMemory> memory,
                         std::unique_ptr<PipelineLanes> lanes, const Options& options)
    : state_(std::move(state)),
      memory_(std::move(memory)),
      reductions_(*state_, *memory_, options.bounds),
      epochs_(*state_, *lanes, options.in_place, options.model) {
  lanes_.push_back(std::move(lanes));
}

void CommContext::BeginForward() {
  if (state_->status().ok()) epochs_.EndWriting();
}

absl::Status CommContext::FinishBackward() {
  WEFT_RETURN_IF_ERROR(state_->status());
  epochs_.EndReading();  // First: peers need not wait for this rank's reductions.
  if (const absl::Status drained = reductions_.Drain(); !drained.ok()) return state_->Fail(drained);
  WEFT_RETURN_IF_ERROR(memory_->FreeRetiredImages());
  return epochs_.Finish();
}

void CommContext::AwaitReleases() {
  // Both record a failure in the state, and the next call returns it.
  if (!memory_->FreeRetiredImages().ok() || !epochs_.AwaitUpdates().ok()) return;
}

absl::Status CommContext::ResetAfterError() {
  WEFT_RETURN_IF_ERROR(state_->engine().ResetAfterError());
  reductions_.Clear();
  memory_->ResetAfterError();
  epochs_.ResetAfterError();
  for (const auto& lanes : lanes_) lanes->Restart();
  state_->ClearFailure();
  return absl::OkStatus();
}

}  // namespace weft
