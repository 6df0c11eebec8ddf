// Reductions of a few values over all ranks of a model.
//
// Thread safety: none. Collective: all of it, by all ranks of the mesh.
// Lifetime: the context must outlive it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

#include "sharding/pipeline/comm_context.h"

namespace weft {

class ModelScalars {
 public:
  // `all_ranks`: every rank that the model is sharded or replicated over.
  static absl::StatusOr<ModelScalars> Create(CommContext& context, const ProcessGroup& all_ranks);

  // Reduces in place over all ranks, and waits. More than PipelineLanes::kScalarBytes take node memory for
  // the time of the call.
  absl::Status AllReduce(const std::string& label, void* values, DType dtype, int64_t count, ReduceOp op);
  // Sets each flag that is set on any rank.
  absl::Status AnyOnAllRanks(const std::string& label, std::vector<bool>& flags);
  // True if all ranks pass the same number. Ranks that have submitted different all-gathers before get an
  // error instead of waiting for each other at different places.
  absl::StatusOr<bool> IsSameOnAllRanks(const std::string& label, uint64_t number);

 private:
  ModelScalars(CommContext& context, LaneId lane) : context_(context), lane_(lane) {}
  absl::Status AllReduceOverModel(const std::string& label, void* values, DType dtype, int64_t count,
                                  ReduceOp op);

  CommContext& context_;
  LaneId lane_;
};

}  // namespace weft
