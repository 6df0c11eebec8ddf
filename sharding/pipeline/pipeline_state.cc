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

absl::Status PipelineState::WaitInSlices(const std::function<absl::Status(Deadline)>& wait) {
  if (wait_check_ == nullptr) return wait(std::nullopt);
  constexpr absl::Duration kSlice = absl::Milliseconds(50);
  Runtime& runtime = engine_.bootstrap().runtime();
  const absl::Time end = runtime.Now() + engine_.timeout();
  while (true) {
    const absl::Time slice_end = std::min(end, runtime.Now() + kSlice);
    absl::Status waited = wait(slice_end);
    if (!absl::IsDeadlineExceeded(waited) || slice_end == end || !engine_.status().ok()) return waited;
    WEFT_RETURN_IF_ERROR(wait_check_());
  }
}

}  // namespace weft
