#include "sharding/pipeline/pipeline_state.h"

#include <algorithm>

#include "weft/core/status.h"
#include "weft/mesh/runtime.h"

namespace weft {

void PipelineState::Stop(const absl::Status& cause) {
  if (!status_.ok()) return;
  status_ = Annotate(cause, "sharding stopped");
  engine_.Abort(cause);
}

absl::Status PipelineState::WaitInSlices(const std::function<absl::Status(Timeout)>& wait) {
  if (wait_check_ == nullptr) return wait(std::nullopt);
  constexpr absl::Duration kSlice = absl::Milliseconds(50);
  const Deadline deadline(engine_.bootstrap().runtime(), engine_.timeout());
  while (true) {
    const absl::Duration left = deadline.Left();
    absl::Status waited = wait(std::min(left, kSlice));
    if (!absl::IsDeadlineExceeded(waited) || left <= kSlice || !engine_.status().ok()) return waited;
    WEFT_RETURN_IF_ERROR(wait_check_());
  }
}

}  // namespace weft
