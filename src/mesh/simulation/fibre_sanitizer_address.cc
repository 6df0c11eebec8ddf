#include <sanitizer/common_interface_defs.h>
#include <sanitizer/lsan_interface.h>

#include "src/mesh/simulation/fibre_sanitizer.h"

namespace weft::internal {

void FibreSanitizer::Entering() { __sanitizer_start_switch_fiber(&resumer_frames_, bottom_, bytes_); }
void FibreSanitizer::Returned() { __sanitizer_finish_switch_fiber(resumer_frames_, nullptr, nullptr); }
void FibreSanitizer::Entered() {
  __sanitizer_finish_switch_fiber(own_frames_, &resumer_bottom_, &resumer_bytes_);
}
void FibreSanitizer::Leaving(bool for_good) {
  __sanitizer_start_switch_fiber(for_good ? nullptr : &own_frames_, resumer_bottom_, resumer_bytes_);
}
bool FibreSanitizer::KeepsStack() {
  __lsan_register_root_region(bottom_, bytes_);
  return true;
}

}  // namespace weft::internal
