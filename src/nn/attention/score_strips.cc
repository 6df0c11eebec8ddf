// One of the sources that are compiled for AVX512-BF16. They call no inline function of other headers: the
// linker might keep their copy of one for all callers.
#include "src/nn/attention/score_strips.h"

#include <immintrin.h>

#include "src/nn/products/panel_kernels.h"
#include "src/nn/products/transpose_words.h"

namespace weft::panels {
namespace {

constexpr __mmask16 kAll = 0xFFFF;

// The first of 16 values of a row in the left quadrants of a product; those of the right follow kTileWords
// further.
int64_t RowOffset(int64_t row) { return row / kTile * 2 * kTileWords + row % kTile * kTile; }

// e^x for 16 values, as Exp of vector_math.h but for fused multiplications. 0 for x < -87.3.
__m512 Exp(__m512 x) {
  const __m512 clamped = _mm512_max_ps(_mm512_set1_ps(-88.0F), x);  // x if that is NaN.
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(clamped, _mm512_set1_ps(1.44269504F)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375F), clamped);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4F), r);
  __m512 polynomial = _mm512_set1_ps(1.38144670593e-3F);
  polynomial = _mm512_fmadd_ps(polynomial, r, _mm512_set1_ps(8.36878041118e-3F));
  polynomial = _mm512_fmadd_ps(polynomial, r, _mm512_set1_ps(4.16683942109e-2F));
  polynomial = _mm512_fmadd_ps(polynomial, r, _mm512_set1_ps(1.66665201078e-1F));
  polynomial = _mm512_fmadd_ps(polynomial, r, _mm512_set1_ps(4.99999934125e-1F));
  const __m512 power =
      _mm512_add_ps(_mm512_fmadd_ps(polynomial, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.0F));
  const __mmask16 normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.3F), _CMP_NLT_UQ);
  return _mm512_maskz_scalef_ps(normal, power, n);
}

// Lower 16 values of bf16: `low`. Upper 16: `high`.
__m512i RoundBoth(__m512 low, __m512 high) {
  return __builtin_bit_cast(__m512i, _mm512_cvtne2ps_pbh(high, low));
}

// The keys of a panel that a query attends to.
struct Visible {
  __mmask16 left, right;
};

Visible VisibleOf(const ScoreStrip& strip, int64_t query, int64_t panel) {
  if (strip.visible == nullptr) return {kAll, kAll};
  const uint16_t* bits = strip.visible + 2 * (query * strip.key_panels + panel);
  return {bits[0], bits[1]};
}

bool AttendsToAny(const ScoreStrip& strip, int64_t query) {
  if (strip.visible == nullptr) return true;
  const uint16_t* bits = strip.visible + 2 * query * strip.key_panels;
  for (int64_t i = 0; i < 2 * strip.key_panels; ++i) {
    if (bits[i] != 0) return true;
  }
  return false;
}

// The maximum of the visible scores of a query.
float Maximum(const ScoreStrip& strip, int64_t query, const float* row) {
  __m512 left = _mm512_set1_ps(-__builtin_inff());
  __m512 right = left;
  for (int64_t panel = 0; panel < strip.key_panels; ++panel, row += kProductFloats) {
    const Visible visible = VisibleOf(strip, query, panel);
    left = _mm512_mask_max_ps(left, visible.left, left, _mm512_loadu_ps(row));
    right = _mm512_mask_max_ps(right, visible.right, right, _mm512_loadu_ps(row + kTileWords));
  }
  return _mm512_reduce_max_ps(_mm512_max_ps(left, right));
}

// A query's values of a panel of keys.
struct Values {
  __m512 left, right;
};

Values Load(const float* row) { return {_mm512_loadu_ps(row), _mm512_loadu_ps(row + kTileWords)}; }

Values WeightsOf(const Values& scores, const Visible& visible, __m512 scale, __m512 shift) {
  // The product is rounded as in `shift`: the exponent of the largest score is then exactly 0, however large.
  const __m512 left = _mm512_sub_ps(_mm512_mul_ps(scores.left, scale), shift);
  const __m512 right = _mm512_sub_ps(_mm512_mul_ps(scores.right, scale), shift);
  return {_mm512_maskz_mov_ps(visible.left, Exp(left)), _mm512_maskz_mov_ps(visible.right, Exp(right))};
}

// The gradients of the scores, from those of the weights.
Values GradientsOf(const Values& weights, const Values& weight_gradients, const Visible& visible,
                   __m512 scale, __m512 delta) {
  const __m512 left = _mm512_mul_ps(weights.left, _mm512_sub_ps(weight_gradients.left, delta));
  const __m512 right = _mm512_mul_ps(weights.right, _mm512_sub_ps(weight_gradients.right, delta));
  return {_mm512_maskz_mul_ps(visible.left, left, scale), _mm512_maskz_mul_ps(visible.right, right, scale)};
}

// Stores the values of two neighboring queries as a row of a panel of B: pairs along the queries.
void StorePairs(const Values& even, const Values& odd, uint32_t* target) {
  // Word i: value i of the even query, and above it value i of the odd one.
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                                         22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  _mm512_storeu_si512(target, _mm512_permutexvar_epi16(order, RoundBoth(even.left, odd.left)));
  _mm512_storeu_si512(target + kTileWords, _mm512_permutexvar_epi16(order, RoundBoth(even.right, odd.right)));
}

// The offset of a row's words in a panel of A.
int64_t RowOfA(int64_t row) { return row / kTile * kTileWords + row % kTile * kTile; }

}  // namespace

void SoftmaxOfStrip(const ScoreStrip& strip, const SoftmaxSums& sums, float* corrections, uint32_t* weights) {
  const __m512 scale = _mm512_set1_ps(strip.scale);
  for (int64_t query = 0; query < kPanel; ++query) {
    uint32_t* target = weights + RowOfA(query);
    if (!AttendsToAny(strip, query)) {
      for (int64_t panel = 0; panel < strip.key_panels; ++panel)
        _mm512_storeu_si512(target + panel * kBlockWords, _mm512_setzero_si512());
      corrections[query] = 1.0F;
      continue;
    }
    const float* row = strip.scores + RowOffset(query);
    const float highest = Maximum(strip, query, row) * strip.scale;
    const float raised = highest > sums.maximum[query] ? highest : sums.maximum[query];
    const __m512 shift = _mm512_set1_ps(raised);
    __m512 left = _mm512_setzero_ps();
    __m512 right = _mm512_setzero_ps();
    for (int64_t panel = 0; panel < strip.key_panels; ++panel) {
      const Values found =
          WeightsOf(Load(row + panel * kProductFloats), VisibleOf(strip, query, panel), scale, shift);
      left = _mm512_add_ps(left, found.left);
      right = _mm512_add_ps(right, found.right);
      _mm512_storeu_si512(target + panel * kBlockWords, RoundBoth(found.left, found.right));
    }
    corrections[query] = _mm512_cvtss_f32(Exp(_mm512_sub_ps(_mm512_set1_ps(sums.maximum[query]), shift)));
    sums.sum[query] = sums.sum[query] * corrections[query] + _mm512_reduce_add_ps(_mm512_add_ps(left, right));
    sums.maximum[query] = raised;
  }
}

void ScoreGradientsOfStrip(const ScoreStrip& strip, const float* weight_gradients, const float* lse,
                           const float* delta, const StripOperands& operands) {
  const __m512 scale = _mm512_set1_ps(strip.scale);
  for (int64_t query = 0; query < kPanel; query += 2) {
    const __m512 shift[2] = {_mm512_set1_ps(lse[query]), _mm512_set1_ps(lse[query + 1])};
    const __m512 own_delta[2] = {_mm512_set1_ps(delta[query]), _mm512_set1_ps(delta[query + 1])};
    const int64_t row_of_b = query / 2 * kTile;
    for (int64_t panel = 0; panel < strip.key_panels; ++panel) {
      Values weights[2];
      Values gradients[2];
      for (int64_t i = 0; i < 2; ++i) {
        const int64_t row = panel * kProductFloats + RowOffset(query + i);
        const Visible visible = VisibleOf(strip, query + i, panel);
        weights[i] = WeightsOf(Load(strip.scores + row), visible, scale, shift[i]);
        gradients[i] = GradientsOf(weights[i], Load(weight_gradients + row), visible, scale, own_delta[i]);
        _mm512_storeu_si512(operands.gradients_by_query + panel * kBlockWords + RowOfA(query + i),
                            RoundBoth(gradients[i].left, gradients[i].right));
      }
      StorePairs(weights[0], weights[1], operands.weights + panel * operands.panel_words + row_of_b);
      StorePairs(gradients[0], gradients[1], operands.gradients + panel * operands.panel_words + row_of_b);
    }
  }
}

void ScaleRowsOfProducts(float* products, int64_t count, const float* factors) {
  for (int64_t row = 0; row < kPanel; ++row) {
    if (factors[row] == 1.0F) continue;
    const __m512 factor = _mm512_set1_ps(factors[row]);
    float* values = products + RowOffset(row);
    for (int64_t i = 0; i < count; ++i, values += kProductFloats) {
      _mm512_storeu_ps(values, _mm512_mul_ps(_mm512_loadu_ps(values), factor));
      _mm512_storeu_ps(values + kTileWords, _mm512_mul_ps(_mm512_loadu_ps(values + kTileWords), factor));
    }
  }
}

void UnpackRows(const float* products, int64_t count, float* rows) {
  for (int64_t row = 0; row < kPanel; ++row) {
    const float* values = products + RowOffset(row);
    for (int64_t i = 0; i < count; ++i, values += kProductFloats, rows += kPanel) {
      _mm512_storeu_ps(rows, _mm512_loadu_ps(values));
      _mm512_storeu_ps(rows + kTile, _mm512_loadu_ps(values + kTileWords));
    }
  }
}

void UnpackColumns(const float* products, int64_t stride, int64_t count, float* columns) {
  const int64_t length = kPanel * count;
  for (int64_t i = 0; i < count; ++i, products += stride, columns += kPanel) {
    for (int64_t quadrant = 0; quadrant < 4; ++quadrant) {
      __m512i words[16];
      for (int64_t row = 0; row < kTile; ++row)
        words[row] = _mm512_loadu_si512(products + quadrant * kTileWords + row * kTile);
      Transpose(words);
      float* target = columns + quadrant % 2 * kTile * length + quadrant / 2 * kTile;
      for (int64_t column = 0; column < kTile; ++column)
        _mm512_storeu_si512(target + column * length, words[column]);
    }
  }
}

}  // namespace weft::panels
