#include "src/mesh/simulation/fiber_sanitizer.h"

namespace weft::internal {

void FiberSanitizer::StartSwitchIn() {}
void FiberSanitizer::FinishSwitchOut() {}
void FiberSanitizer::FinishSwitchIn() {}
void FiberSanitizer::StartSwitchOut(bool /*finished*/) {}
bool FiberSanitizer::RetainStack() { return false; }
void FiberSanitizer::ReleaseStack() {}

}  // namespace weft::internal
