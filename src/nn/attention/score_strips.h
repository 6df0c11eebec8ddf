// Passes over strips of attention's scores, by AVX512-BF16. A *strip* has the scores of 32 queries with some
// panels of 32 keys: the products of the panel of queries and each panel of keys (panel_kernels.h).
// Weights and gradients of scores are rounded to bf16 and stored as packed operands of the next products.
// REQUIRES: Avx512Bf16Unit() is not null.
//
// Thread safety: any thread.
#pragma once

#include <cstdint>

namespace weft::panels {

// The scores of a strip [panels of keys][kProductFloats], and the keys that its queries attend to.
struct ScoreStrip {
  const float* scores;
  int64_t key_panels;
  // [32 queries][2 per panel of keys]: a bit for each of 16 keys. Null: all.
  const uint16_t* visible;
  float scale;  // Factor of the scores.
};

// Running sums of the 32 queries of a strip, see Note [Online softmax].
struct SoftmaxSums {
  float* maximum;  // Of the scores, before their factor.
  float* sum;      // Of the weights.
};

// The scores have a column for each query: products of panels of keys with a panel of queries. Writes the
// weights exp(scale * (score - maximum)), 0 for hidden keys, as a panel of B: keys by queries. Updates
// `sums`, and writes the factors of the queries' sums over earlier tiles to `corrections`.
void SoftmaxOfStrip(const ScoreStrip& strip, const SoftmaxSums& sums, float* corrections, uint32_t* weights);

// The operands of the products of backward for one strip.
struct StripOperands {
  // Panels of B, queries by keys: the k block of these queries in the first panel of keys. The next panel of
  // keys is `panel_words` further.
  uint32_t* weights;
  uint32_t* gradients;
  int64_t panel_words;
  uint32_t* gradients_by_query;  // A panel of A: queries by keys.
};

// The scores, and the weight gradients of the same shape, have a row for each query. With weight =
// exp(scale * score - lse), or 0 for hidden keys, writes weight and weight * (weight_gradient - delta) *
// scale, both 0 for hidden keys, whatever their scores and weight gradients are. `lse` and `delta` have one
// value per query.
void ScoreGradientsOfStrip(const ScoreStrip& strip, const float* weight_gradients, const float* lse,
                           const float* delta, const StripOperands& operands);

// Multiplies column c of each product by factors[c].
void ScaleColumnsOfProducts(float* products, int64_t count, const float* factors);

// The rows of `count` products that lie side by side, [32][32 * count].
void UnpackRows(const float* products, int64_t count, float* rows);
// The columns of `count` products that lie below each other, `stride` floats apart: [32][32 * count].
void UnpackColumns(const float* products, int64_t stride, int64_t count, float* columns);

}  // namespace weft::panels
