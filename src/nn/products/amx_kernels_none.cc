// For compilers without AMX: no kernels.
#include "src/nn/products/amx_kernels.h"
#include "weft/core/status.h"

namespace weft::amx {
namespace {

constexpr char kMissing[] = "this build has no AMX kernels";

}  // namespace

bool IsAvailable() { return false; }
void PackPanelBlock(Operand, Source, int64_t, int64_t, uint32_t*) { WEFT_CHECK(false, kMissing); }
void MultiplyPanels(const uint32_t*, const uint32_t*, int64_t, bool, float*) { WEFT_CHECK(false, kMissing); }
void StoreBf16Rows(const float*, int64_t, uint16_t*, int64_t) { WEFT_CHECK(false, kMissing); }
TileScope::TileScope() = default;
TileScope::~TileScope() = default;

}  // namespace weft::amx
