// One of the sources that are compiled for AVX512-BF16. They call no inline function of other headers: the
// linker might keep their copy of one for all callers.
#include "src/nn/attention/score_strips.h"

#include <immintrin.h>

#include "src/nn/products/panel_kernels.h"
#include "src/nn/products/transpose_words.h"

namespace weft::panels {
namespace {

constexpr __mmask16 kAll = 0xFFFF;
constexpr float kLog2E = 1.44269504F;

// The first of 16 values of a row in the left quadrants of a product; those of the right follow kTileWords
// further.
int64_t RowOffset(int64_t row) { return row / kTile * 2 * kTileWords + row % kTile * kTile; }

// The base of a power.
struct Base {
  explicit Base(float logarithm)
      : log2(_mm512_set1_ps(logarithm)),
        lowest(_mm512_max_ps(_mm512_set1_ps(-126.0F / logarithm), _mm512_set1_ps(-__FLT_MAX__))) {}

  __m512 log2;    // Its logarithm to base 2, positive.
  __m512 lowest;  // Smaller exponents count as this one, which is finite. The power is then about 2^-126.
};

// base^x for 16 values, within two units in the last place. Exactly 1 for x = 0. REQUIRES: base^x < 2^127, or
// the caller discards the value.
//
// Method: x log2(base) = n + r with |r| <= 1/2. The polynomial 1 + r P(r) has the least relative error from
// 2^r on that interval (2^-23). The exponent bits give 2^n.
__m512 Power(const Base& base, __m512 x) {
  // 1.5 * 2^23. Adding it rounds to an integer and leaves that integer in the low mantissa bits.
  const __m512 rounding_shift = _mm512_set1_ps(12582912.0F);
  const __m512 clamped = _mm512_max_ps(base.lowest, x);  // x if that is NaN.
  const __m512 shifted = _mm512_fmadd_ps(clamped, base.log2, rounding_shift);
  const __m512 r = _mm512_fmsub_ps(clamped, base.log2, _mm512_sub_ps(shifted, rounding_shift));
  __m512 power = _mm512_set1_ps(1.32647287698e-3F);
  power = _mm512_fmadd_ps(power, r, _mm512_set1_ps(9.67151318311e-3F));
  power = _mm512_fmadd_ps(power, r, _mm512_set1_ps(5.55073374448e-2F));
  power = _mm512_fmadd_ps(power, r, _mm512_set1_ps(2.40222420771e-1F));
  power = _mm512_fmadd_ps(power, r, _mm512_set1_ps(6.93146977595e-1F));
  power = _mm512_fmadd_ps(power, r, _mm512_set1_ps(1.0F));
  const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(power), exponent));
}

// Lower 16 values of bf16: `low`. Upper 16: `high`.
__m512i RoundBoth(__m512 low, __m512 high) {
  return __builtin_bit_cast(__m512i, _mm512_cvtne2ps_pbh(high, low));
}

// The keys of a panel that a query attends to.
struct Visible {
  __mmask16 left, right;
};

// kMasks: whether the strip has bits of visible keys. Without them, the compiler leaves out all masks.
template <bool kMasks>
Visible VisibleOf(const ScoreStrip& strip, int64_t query, int64_t panel) {
  if constexpr (!kMasks) return {kAll, kAll};
  const uint16_t* bits = strip.visible + 2 * (query * strip.key_panels + panel);
  return {bits[0], bits[1]};
}

// A query's values of a panel of keys.
struct Values {
  __m512 left, right;
};

Values Load(const float* row) { return {_mm512_loadu_ps(row), _mm512_loadu_ps(row + kTileWords)}; }

// e^(score * scale - lse), 0 for hidden keys.
Values WeightsOf(const Values& scores, const Visible& visible, __m512 scale, __m512 lse) {
  // The product is rounded before the difference, as in `lse`: both are equal if one key has all the weight,
  // however large its score is.
  const Base e(kLog2E);
  const __m512 left = Power(e, _mm512_sub_ps(_mm512_mul_ps(scores.left, scale), lse));
  const __m512 right = Power(e, _mm512_sub_ps(_mm512_mul_ps(scores.right, scale), lse));
  return {_mm512_maskz_mov_ps(visible.left, left), _mm512_maskz_mov_ps(visible.right, right)};
}

// The gradients of the scores, from those of the weights.
Values GradientsOf(const Values& weights, const Values& weight_gradients, const Visible& visible,
                   __m512 scale, __m512 delta) {
  const __m512 left = _mm512_mul_ps(weights.left, _mm512_sub_ps(weight_gradients.left, delta));
  const __m512 right = _mm512_mul_ps(weights.right, _mm512_sub_ps(weight_gradients.right, delta));
  return {_mm512_maskz_mul_ps(visible.left, left, scale), _mm512_maskz_mul_ps(visible.right, right, scale)};
}

// Words of pairs along k: value i of `even`, and above it value i of `odd`.
__m512i Pairs(__m512 even, __m512 odd) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                                         22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, RoundBoth(even, odd));
}

// Stores the values of two neighboring queries as a row of a panel of B.
void StorePairs(const Values& even, const Values& odd, uint32_t* target) {
  _mm512_storeu_si512(target, Pairs(even.left, odd.left));
  _mm512_storeu_si512(target + kTileWords, Pairs(even.right, odd.right));
}

// The offset of a row's words in a panel of A.
int64_t RowOfA(int64_t row) { return row / kTile * kTileWords + row % kTile * kTile; }

// Two neighboring keys: their scores with 16 queries, and the queries that attend to them.
struct KeyPair {
  __m512 even, odd;
  __mmask16 even_visible, odd_visible;
};

// 16 queries of a strip with a column for each query: those from `first` on, which is 0 or kTile.
template <bool kMasks>
class QueryColumns {
 public:
  QueryColumns(const ScoreStrip& strip, int64_t first)
      : strip_(strip), first_(first), scores_(strip.scores + first / kTile * kTileWords) {}

  // Calls visit(keys, place) for all pairs of keys. `place` is the offset of their words in a panel of B.
  template <typename Visit>
  void ForEachPair(const Visit& visit) const {
    for (int64_t panel = 0; panel < strip_.key_panels; ++panel) {
      const __m512i bits = kMasks ? BitsOf(panel) : _mm512_setzero_si512();
      __m512i bit = _mm512_set1_epi32(1);
      for (int64_t tile = 0; tile < 2; ++tile) {
        const float* scores = scores_ + panel * kProductFloats + tile * 2 * kTileWords;
        const int64_t place = panel * kBlockWords + tile * kTileWords / 2;
        for (int64_t pair = 0; pair < kTile / 2; ++pair) {
          const float* even = scores + 2 * pair * kTile;
          KeyPair keys = {_mm512_loadu_ps(even), _mm512_loadu_ps(even + kTile), kAll, kAll};
          if constexpr (kMasks) {
            keys.even_visible = _mm512_test_epi32_mask(bits, bit);
            keys.odd_visible = _mm512_test_epi32_mask(bits, _mm512_slli_epi32(bit, 1));
            bit = _mm512_slli_epi32(bit, 2);
          }
          visit(keys, place + pair * kTile);
        }
      }
    }
  }

  // The queries that attend to any key.
  __mmask16 Attending() const {
    __m512i bits = _mm512_setzero_si512();
    for (int64_t panel = 0; kMasks && panel < strip_.key_panels; ++panel)
      bits = _mm512_or_si512(bits, BitsOf(panel));
    return kMasks ? _mm512_test_epi32_mask(bits, bits) : kAll;
  }

 private:
  // For each query, a bit for each key of a panel.
  __m512i BitsOf(int64_t panel) const {
    const __m512i queries = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i places =
        _mm512_mullo_epi32(queries, _mm512_set1_epi32(static_cast<int>(strip_.key_panels)));
    return _mm512_i32gather_epi32(places, strip_.visible + 2 * (first_ * strip_.key_panels + panel), 4);
  }

  const ScoreStrip& strip_;
  int64_t first_;
  const float* scores_;
};

template <bool kMasks>
void Softmax(const ScoreStrip& strip, const SoftmaxSums& sums, float* corrections, uint32_t* weights) {
  const Base base(strip.scale * kLog2E);
  for (int64_t first = 0; first < kPanel; first += kTile) {
    const QueryColumns<kMasks> queries(strip, first);
    const __m512 maximum = _mm512_loadu_ps(sums.maximum + first);
    __m512 even = maximum;
    __m512 odd = maximum;
    queries.ForEachPair([&](const KeyPair& keys, int64_t) {
      even = _mm512_mask_max_ps(even, keys.even_visible, even, keys.even);
      odd = _mm512_mask_max_ps(odd, keys.odd_visible, odd, keys.odd);
    });
    const __m512 raised = _mm512_max_ps(even, odd);
    _mm512_storeu_ps(sums.maximum + first, raised);
    // The maximum of a query that has attended to no key yet is -infinity.
    const __mmask16 attending = queries.Attending();
    const __m512 shift = _mm512_maskz_mov_ps(attending, raised);
    uint32_t* target = weights + first / kTile * kTileWords;
    even = _mm512_setzero_ps();
    odd = _mm512_setzero_ps();
    queries.ForEachPair([&](const KeyPair& keys, int64_t place) {
      const __m512 even_weight =
          _mm512_maskz_mov_ps(keys.even_visible, Power(base, _mm512_sub_ps(keys.even, shift)));
      const __m512 odd_weight =
          _mm512_maskz_mov_ps(keys.odd_visible, Power(base, _mm512_sub_ps(keys.odd, shift)));
      even = _mm512_add_ps(even, even_weight);
      odd = _mm512_add_ps(odd, odd_weight);
      _mm512_storeu_si512(target + place, Pairs(even_weight, odd_weight));
    });
    const __m512 correction =
        _mm512_mask_mov_ps(_mm512_set1_ps(1.0F), attending, Power(base, _mm512_sub_ps(maximum, shift)));
    const __m512 earlier = _mm512_mul_ps(_mm512_loadu_ps(sums.sum + first), correction);
    _mm512_storeu_ps(sums.sum + first, _mm512_add_ps(earlier, _mm512_add_ps(even, odd)));
    _mm512_storeu_ps(corrections + first, correction);
  }
}

template <bool kMasks>
void ScoreGradients(const ScoreStrip& strip, const float* weight_gradients, const float* lse,
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
        const Visible visible = VisibleOf<kMasks>(strip, query + i, panel);
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

}  // namespace

void SoftmaxOfStrip(const ScoreStrip& strip, const SoftmaxSums& sums, float* corrections, uint32_t* weights) {
  strip.visible == nullptr ? Softmax<false>(strip, sums, corrections, weights)
                           : Softmax<true>(strip, sums, corrections, weights);
}

void ScoreGradientsOfStrip(const ScoreStrip& strip, const float* weight_gradients, const float* lse,
                           const float* delta, const StripOperands& operands) {
  strip.visible == nullptr ? ScoreGradients<false>(strip, weight_gradients, lse, delta, operands)
                           : ScoreGradients<true>(strip, weight_gradients, lse, delta, operands);
}

void ScaleColumnsOfProducts(float* products, int64_t count, const float* factors) {
  const __m512 left = _mm512_loadu_ps(factors);
  const __m512 right = _mm512_loadu_ps(factors + kTile);
  const __m512 one = _mm512_set1_ps(1.0F);
  if ((_mm512_cmpneq_ps_mask(left, one) | _mm512_cmpneq_ps_mask(right, one)) == 0) return;
  for (int64_t row = 0; row < count * kPanel; ++row) {
    float* values = products + RowOffset(row);
    _mm512_storeu_ps(values, _mm512_mul_ps(_mm512_loadu_ps(values), left));
    _mm512_storeu_ps(values + kTileWords, _mm512_mul_ps(_mm512_loadu_ps(values + kTileWords), right));
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
