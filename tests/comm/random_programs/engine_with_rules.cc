#include "tests/comm/random_programs/engine_with_rules.h"

#include "src/comm/engine/engine_impl.h"
#include "weft/core/status.h"

namespace weft {

absl::StatusOr<std::unique_ptr<CommEngine>> EngineWithRules::Create(Bootstrap& bootstrap, NodeHeap& heap,
                                                                    const EngineOptions& options,
                                                                    CreditRules rules) {
  auto impl = std::make_unique<CommEngine::Impl>(bootstrap, heap, options, rules);
  WEFT_RETURN_IF_ERROR(impl->Open());
  return std::unique_ptr<CommEngine>(new CommEngine(std::move(impl)));
}

}  // namespace weft
