#include "sharding/pipeline/pipeline_state.h"

#include "weft/core/status.h"

namespace weft {

void PipelineState::Stop(const absl::Status& cause) {
  if (!status_.ok()) return;
  status_ = Annotate(cause, "sharding stopped");
  engine_.Abort(cause);
}

}  // namespace weft
