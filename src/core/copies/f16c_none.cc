// For compilers without F16C.
#include "src/core/copies/convert_run.h"
#include "weft/core/status.h"

namespace weft::internal::f16c {
namespace {

constexpr char kMissing[] = "this build has no F16C conversions";

}  // namespace

bool IsAvailable() { return false; }
void Widen(const F16*, float*, int64_t, float) { WEFT_CHECK(false, kMissing); }
void Narrow(const float*, F16*, int64_t, float) { WEFT_CHECK(false, kMissing); }

}  // namespace weft::internal::f16c
