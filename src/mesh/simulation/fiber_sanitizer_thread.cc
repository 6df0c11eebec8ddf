#include <sanitizer/tsan_interface.h>

#include "src/mesh/simulation/fiber_sanitizer.h"

namespace weft::internal {

// ThreadSanitizer treats a fiber as a thread with its own call stack. A switch orders the accesses of both
// sides. Functions that switch are not instrumented: their entry and exit would count for different stacks.
__attribute__((no_sanitize_thread)) void FiberSanitizer::StartSwitchIn() {
  if (own_context_ == nullptr) own_context_ = __tsan_create_fiber(0);
  resumer_context_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(own_context_, 0);
}
void FiberSanitizer::FinishSwitchOut() {}
void FiberSanitizer::FinishSwitchIn() {}
__attribute__((no_sanitize_thread)) void FiberSanitizer::StartSwitchOut(bool /*finished*/) {
  __tsan_switch_to_fiber(resumer_context_, 0);
}
bool FiberSanitizer::RetainStack() { return false; }
void FiberSanitizer::ReleaseStack() {
  if (own_context_ != nullptr) __tsan_destroy_fiber(own_context_);
}

}  // namespace weft::internal
