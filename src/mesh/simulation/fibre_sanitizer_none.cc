#include "src/mesh/simulation/fibre_sanitizer.h"

namespace weft::internal {

void FibreSanitizer::Entering() {}
void FibreSanitizer::Returned() {}
void FibreSanitizer::Entered() {}
void FibreSanitizer::Leaving(bool /*for_good*/) {}
bool FibreSanitizer::KeepsStack() { return false; }

}  // namespace weft::internal
