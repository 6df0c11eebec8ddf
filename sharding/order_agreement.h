// Whether all ranks of a model have recorded the same order: one reduction of two numbers over all of them.
//
// Collective: Make and Agree, by all ranks of the mesh. Thread safety: none.
// Lifetime: the context must outlive it.
#pragma once

#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "sharding/execution_order.h"
#include "weft/sharding/comm_context.h"

namespace weft {

class OrderAgreement {
 public:
  // `everyone`: all ranks that the model is sharded or replicated over.
  static absl::StatusOr<OrderAgreement> Make(CommContext& context, const ProcessGroup& everyone);

  absl::StatusOr<bool> Agree(absl::Span<const PassEvent> recorded);

 private:
  OrderAgreement(CommContext& context, LaneId lane) : context_(context), lane_(lane) {}

  CommContext& context_;
  LaneId lane_;
};

}  // namespace weft
