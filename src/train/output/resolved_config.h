// Resolved configuration of a run: each choice with its value and reason.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/train/plan/inputs.h"
#include "src/train/plan/run_plan.h"
#include "weft/core/dtype.h"
#include "weft/mesh/bootstrap.h"
#include "weft/train/config.h"
#include "weft/train/thread_plan.h"

namespace weft {

struct ResolvedItem {
  std::string key;
  std::string value;
  std::string reason;  // May be empty.
};

std::vector<ResolvedItem> ResolveConfig(const TrainConfig& config, const TrainInputs& inputs,
                                        const RunPlan& plan, const ThreadPlan& threads,
                                        const Bootstrap& bootstrap);

// The rate of matrix products on the threads of the calling one, for a line at the start of a run. Multiplies
// for some milliseconds.
std::string MeasuredProductSpeed(DType dtype);

// One line per item, in columns.
std::string ToText(const std::vector<ResolvedItem>& items);
// {"key": {"value": …, "reason": …}, …}, in order.
std::string ToJson(const std::vector<ResolvedItem>& items);
// That of the items of every run begins so.
inline constexpr std::string_view kBeginningOfJson = "{\n  \"model\": {\n    \"value\": \"";

}  // namespace weft
