// For compilers without AVX512-BF16: no passes.
#include "src/nn/attention/score_strips.h"
#include "weft/core/status.h"

namespace weft::panels {
namespace {

constexpr char kMissing[] = "this build has no passes over strips of bf16 scores";

}  // namespace

void SoftmaxOfStrip(const ScoreStrip&, const SoftmaxSums&, float*, uint32_t*) { WEFT_CHECK(false, kMissing); }
void ScoreGradientsOfStrip(const ScoreStrip&, const float*, const float*, const float*,
                           const StripOperands&) {
  WEFT_CHECK(false, kMissing);
}
void ScaleColumnsOfProducts(float*, int64_t, const float*) { WEFT_CHECK(false, kMissing); }
void UnpackRows(const float*, int64_t, float*) { WEFT_CHECK(false, kMissing); }
void UnpackColumns(const float*, int64_t, int64_t, float*) { WEFT_CHECK(false, kMissing); }

}  // namespace weft::panels
