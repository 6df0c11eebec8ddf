// For compilers without AMX or AVX512-BF16: no kernels.
#include "src/nn/products/panel_kernels.h"
#include "weft/core/status.h"

namespace weft::panels {
namespace {

constexpr char kMissing[] = "this build has no kernels for panels of bf16";

}  // namespace

const PanelUnit* AmxUnit() { return nullptr; }
const PanelUnit* Avx512Bf16Unit() { return nullptr; }
void PackPanelBlock(Operand, Source, int64_t, int64_t, uint32_t*) { WEFT_CHECK(false, kMissing); }
void StoreBf16Rows(const float*, int64_t, uint16_t*, int64_t) { WEFT_CHECK(false, kMissing); }
void StoreFloatRows(const float*, int64_t, float*, int64_t) { WEFT_CHECK(false, kMissing); }
void StreamFloatRows(const float*, int64_t, float*, int64_t) { WEFT_CHECK(false, kMissing); }
void EndStreams() { WEFT_CHECK(false, kMissing); }

}  // namespace weft::panels
