#include "sharding/pipeline/step_epochs.h"

#include <utility>

#include "weft/core/status.h"

namespace weft {

void StepEpochs::EndWriting() {
  if (!in_place_ || lanes_.shards_optimizer_over_replicas() || written_ != nullptr) return;
  written_ = std::make_shared<Work>(lanes_.BarrierAfterAllGathers(written_label_));
}

std::shared_ptr<Work> StepEpochs::WrittenBarrier(const std::string& group, uint64_t& seen_epoch,
                                                 const Work* after) {
  if (std::exchange(seen_epoch, epoch_) == epoch_) return nullptr;
  return written_ != nullptr ? written_ : std::make_shared<Work>(lanes_.BarrierAfterAllGathers(group, after));
}

void StepEpochs::EndReading() {
  if (in_place_) read_ = lanes_.BarrierAfterAllGathers(read_label_);
}

absl::Status StepEpochs::AwaitUpdates() {
  for (Work& update : updates_) WEFT_RETURN_IF_ERROR(state_.AwaitRelease(update));
  return absl::OkStatus();
}

absl::Status StepEpochs::Finish() {
  WEFT_RETURN_IF_ERROR(AwaitUpdates());
  if (in_place_) WEFT_RETURN_IF_ERROR(state_.AwaitReady(read_));
  Start();
  return absl::OkStatus();
}

void StepEpochs::ResetAfterError() {
  read_ = Work();
  Start();
}

void StepEpochs::Start() {
  ++epoch_;
  is_read_ = false;
  written_.reset();
  updates_.clear();
}

}  // namespace weft
