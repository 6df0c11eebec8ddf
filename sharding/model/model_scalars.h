// A few numbers that all ranks of a model reduce together, on a lane of their own.
//
// Collective: all of it, by all ranks of the mesh. Thread safety: none.
// Lifetime: the context must outlive it.
#pragma once

#include <cstdint>
#include <string>

#include <absl/status/statusor.h>

#include "weft/sharding/comm_context.h"

namespace weft {

class ModelScalars {
 public:
  // `everyone`: all ranks that the model is sharded or replicated over.
  static absl::StatusOr<ModelScalars> Make(CommContext& context, const ProcessGroup& everyone);

  int ranks() const { return context_.engine().group(lane_).size(); }

  // In place, and waited for.
  absl::Status AllReduce(const std::string& label, void* values, DType dtype, int64_t count, ReduceOp op);
  // Whether all ranks come with the same number. Ranks that have not gathered the same until here get an
  // error, instead of waiting for each other at different places.
  absl::StatusOr<bool> Same(const std::string& label, uint64_t number);

 private:
  ModelScalars(CommContext& context, LaneId lane) : context_(context), lane_(lane) {}

  CommContext& context_;
  LaneId lane_;
};

}  // namespace weft
