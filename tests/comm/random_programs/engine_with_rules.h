// Test seam: makes engines that break a rule of the credit protocol.
#pragma once

#include <memory>

#include <absl/status/statusor.h>

#include "src/comm/links/credit_scheduler.h"
#include "weft/comm/comm_engine.h"

namespace weft {

class EngineWithRules {
 public:
  // Collective and errors: those of CommEngine::Create.
  static absl::StatusOr<std::unique_ptr<CommEngine>> Create(Bootstrap& bootstrap, NodeHeap& heap,
                                                            const EngineOptions& options, CreditRules rules);
};

}  // namespace weft
