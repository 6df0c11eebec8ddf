#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#include <sanitizer/lsan_interface.h>

#include "src/mesh/simulation/fiber_sanitizer.h"

namespace weft::internal {

void FiberSanitizer::StartSwitchIn() { __sanitizer_start_switch_fiber(&resumer_context_, bottom_, bytes_); }
void FiberSanitizer::FinishSwitchOut() {
  __sanitizer_finish_switch_fiber(resumer_context_, nullptr, nullptr);
}
void FiberSanitizer::FinishSwitchIn() {
  __sanitizer_finish_switch_fiber(own_context_, &resumer_bottom_, &resumer_bytes_);
}
void FiberSanitizer::StartSwitchOut(bool finished) {
  __sanitizer_start_switch_fiber(finished ? nullptr : &own_context_, resumer_bottom_, resumer_bytes_);
}
bool FiberSanitizer::RetainStack() {
  __lsan_register_root_region(bottom_, bytes_);
  return true;
}
void FiberSanitizer::ReleaseStack() { __asan_unpoison_memory_region(bottom_, bytes_); }

}  // namespace weft::internal
