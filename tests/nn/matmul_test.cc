#include "weft/nn/matmul.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "src/nn/products/matmul_backend.h"
#include "src/nn/products/panel_kernels.h"
#include "weft/core/parallel.h"
#include "weft/core/strided_copy.h"
#include "weft/core/tensor.h"

namespace weft {
namespace {

// Values in [-1, 1) that bf16 and f16 represent exactly, so that only the sums round.
float ValueAt(int64_t index) {
  const uint64_t mixed = (static_cast<uint64_t>(index) + 1) * 0x9E3779B97F4A7C15U;
  return static_cast<float>(static_cast<int64_t>(mixed >> 57) - 64) / 64.0F;
}

// A matrix in memory with rows padded to `leading` elements. The padding holds NaN.
struct Stored {
  Stored(DType dtype, int64_t rows, int64_t columns, int64_t leading, int64_t salt)
      : tensor(Tensor::Empty(dtype, {rows, leading})), row_length(leading) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < leading; ++column) {
        Set(row, column, column < columns ? ValueAt(salt + row * columns + column) : NAN);
      }
    }
  }
  void Set(int64_t row, int64_t column, float value) {
    ConvertRun(&value, DType::kF32, ElementAt(row, column), tensor.dtype(), 1);
  }
  float Get(int64_t row, int64_t column) const {
    float value = 0.0F;
    ConvertRun(ElementAt(row, column), tensor.dtype(), &value, DType::kF32, 1);
    return value;
  }
  std::byte* ElementAt(int64_t row, int64_t column) const {
    const auto element = static_cast<int64_t>(SizeOf(tensor.dtype()));
    return static_cast<std::byte*>(tensor.view().data) + (row * row_length + column) * element;
  }
  Tensor tensor;
  int64_t row_length;
};

struct Case {
  int64_t m, n, k;
  bool transpose_a = false;
  bool transpose_b = false;
  float beta = 0.0F;
  DType factors = DType::kF32;
  DType result = DType::kF32;
  int64_t padding = 0;  // Added to every leading dimension.

  friend std::ostream& operator<<(std::ostream& stream, const Case& c) {
    return stream << c.m << "x" << c.n << "x" << c.k << (c.transpose_a ? " A^T" : "")
                  << (c.transpose_b ? " B^T" : "") << " beta " << c.beta << " " << Name(c.factors) << "->"
                  << Name(c.result) << " padding " << c.padding;
  }
};

// The values of a factor as [line][k].
std::vector<double> LinesOf(const Stored& factor, int64_t lines, int64_t k, bool k_first) {
  std::vector<double> values;
  values.reserve(static_cast<size_t>(lines * k));
  for (int64_t line = 0; line < lines; ++line) {
    for (int64_t p = 0; p < k; ++p) values.push_back(k_first ? factor.Get(p, line) : factor.Get(line, p));
  }
  return values;
}

template <typename Multiply>
void ExpectMatchesPlainLoops(const Case& c, const Multiply& multiply) {
  const int64_t a_rows = c.transpose_a ? c.k : c.m;
  const int64_t a_columns = c.transpose_a ? c.m : c.k;
  const int64_t b_rows = c.transpose_b ? c.n : c.k;
  const int64_t b_columns = c.transpose_b ? c.k : c.n;
  const Stored a(c.factors, a_rows, a_columns, a_columns + c.padding, 1);
  const Stored b(c.factors, b_rows, b_columns, b_columns + c.padding, 1000003);
  Stored result(c.result, c.m, c.n, c.n + c.padding, 2000003);
  const Stored old(c.result, c.m, c.n, c.n + c.padding, 2000003);
  if (c.beta == 0.0F) {  // The product must not read the old contents.
    for (int64_t i = 0; i < c.m; ++i) {
      for (int64_t j = 0; j < c.n; ++j) result.Set(i, j, NAN);
    }
  }
  multiply(Product{c.m,
                   c.n,
                   c.k,
                   c.factors,
                   {a.tensor.view().data, a.row_length, c.transpose_a},
                   {b.tensor.view().data, b.row_length, c.transpose_b},
                   c.beta,
                   c.result,
                   result.tensor.view().data,
                   result.row_length});
  const std::vector<double> a_lines = LinesOf(a, c.m, c.k, c.transpose_a);
  const std::vector<double> b_lines = LinesOf(b, c.n, c.k, !c.transpose_b);
  const double half_ulp = c.result == DType::kBF16 ? 0x1p-8 : c.result == DType::kF16 ? 0x1p-11 : 0x1p-24;
  for (int64_t i = 0; i < c.m; ++i) {
    for (int64_t j = 0; j < c.n; ++j) {
      double sum = c.beta == 0.0F ? 0.0 : c.beta * static_cast<double>(old.Get(i, j));
      double magnitude = std::abs(sum);
      for (int64_t p = 0; p < c.k; ++p) {
        const double term =
            a_lines[static_cast<size_t>(i * c.k + p)] * b_lines[static_cast<size_t>(j * c.k + p)];
        sum += term;
        magnitude += std::abs(term);
      }
      const double tolerance = half_ulp * std::abs(sum) + 0x1p-24 * static_cast<double>(c.k + 2) * magnitude;
      ASSERT_NEAR(result.Get(i, j), sum, tolerance) << c << " at " << i << ", " << j;
    }
    for (int64_t j = c.n; j < result.row_length; ++j) {
      ASSERT_TRUE(std::isnan(result.Get(i, j))) << c << " wrote past row " << i;
    }
  }
}

void CallMatmul(const Product& p) {
  Matmul(p.m, p.n, p.k, p.factor_dtype, p.a, p.b, p.beta, p.c_dtype, p.c, p.c_leading);
}

std::vector<Case> Sweep(std::initializer_list<int64_t> sizes) {
  std::vector<Case> cases;
  for (const int64_t m : sizes) {
    for (const int64_t n : sizes) {
      for (const int64_t k : sizes) {
        for (int bits = 0; bits < 8; ++bits) {
          const float beta = (bits & 4) == 0 ? 0.0F : 1.0F;
          cases.push_back({m, n, k, (bits & 1) != 0, (bits & 2) != 0, beta});
        }
      }
    }
  }
  return cases;
}

TEST(Matmul, MatchesPlainLoopsForEverySizeAndTranspose) {
  for (const Case& c : Sweep({0, 1, 2, 17, 60})) ExpectMatchesPlainLoops(c, CallMatmul);
}

TEST(Matmul, MatchesPlainLoopsForEveryDtype) {
  for (Case c : Sweep({1, 33})) {
    for (const DType factors : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const DType result : {DType::kF32, DType::kBF16, DType::kF16}) {
        c.factors = factors;
        c.result = result;
        ExpectMatchesPlainLoops(c, CallMatmul);
      }
    }
  }
}

TEST(Matmul, WritesNothingIntoRowPadding) {
  for (Case c : Sweep({3, 33})) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      c.factors = c.result = dtype;
      c.padding = 7;
      ExpectMatchesPlainLoops(c, CallMatmul);
    }
  }
}

TEST(Matmul, ScalesTheOldResultByBeta) {
  for (const float beta : {0.5F, -2.0F}) {
    ExpectMatchesPlainLoops({.m = 5, .n = 9, .k = 13, .beta = beta}, CallMatmul);
    ExpectMatchesPlainLoops({.m = 5, .n = 9, .k = 0, .beta = beta}, CallMatmul);
  }
}

TEST(Matmul, MatchesPlainLoopsForDeepSums) {
  ExpectMatchesPlainLoops({.m = 5, .n = 7, .k = 9001}, CallMatmul);
  ExpectMatchesPlainLoops({.m = 5, .n = 7, .k = 9001, .transpose_a = true, .beta = 1.0F}, CallMatmul);
}

TEST(Matmul, MatchesPlainLoopsOnSeveralThreads) {
  const int threads = ThreadCount();
  SetThreadCount(3);
  ExpectMatchesPlainLoops({.m = 131, .n = 67, .k = 45}, CallMatmul);
  ExpectMatchesPlainLoops({.m = 131, .n = 67, .k = 45, .transpose_a = true, .transpose_b = true}, CallMatmul);
  SetThreadCount(threads);
}

TEST(EigenBackend, MatchesPlainLoopsForEverySizeAndTranspose) {
  for (const Case& c : Sweep({1, 2, 17, 60})) ExpectMatchesPlainLoops(c, matmul_eigen::Multiply);
}

class PanelBackend : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!matmul_panels::Supports(DType::kBF16, DType::kF32))
      GTEST_SKIP() << "this CPU or compiler has neither AVX512-BF16 nor AMX";
  }
};

TEST_F(PanelBackend, MatchesPlainLoopsForEverySizeTransposeAndResult) {
  for (Case c : Sweep({1, 31, 70})) {
    c.factors = DType::kBF16;
    for (const DType result : {DType::kF32, DType::kBF16}) {
      c.result = result;
      c.padding = c.m % 3;
      ExpectMatchesPlainLoops(c, matmul_panels::Multiply);
    }
  }
}

// Several depths, blocks of B and packed parts of A, for second-level caches of up to 4 MiB.
TEST_F(PanelBackend, MatchesPlainLoopsForLargeSizes) {
  const auto expect = [](Case c) {
    c.factors = DType::kBF16;
    ExpectMatchesPlainLoops(c, matmul_panels::Multiply);
  };
  expect({.m = 33, .n = 40, .k = 40'001, .transpose_a = true, .beta = 1.0F});
  expect({.m = 33, .n = 40, .k = 40'001, .transpose_b = true, .result = DType::kBF16});
  expect({.m = 100'001, .n = 33, .k = 70});
  expect({.m = 33, .n = 20'001, .k = 70, .result = DType::kBF16});
}

// Results that are larger than the second-level cache, with rows that are aligned to its lines and not.
TEST_F(PanelBackend, MatchesPlainLoopsForLargeResults) {
  Case c = {.m = 2049, .n = 1040, .k = 33, .transpose_a = true, .factors = DType::kBF16};
  const int threads = ThreadCount();
  SetThreadCount(3);
  c.padding = 16;
  ExpectMatchesPlainLoops(c, matmul_panels::Multiply);
  SetThreadCount(threads);
  c.padding = 7;
  ExpectMatchesPlainLoops(c, matmul_panels::Multiply);
}

TEST_F(PanelBackend, GivesTheSameBitsOnSeveralThreads) {
  const int threads = ThreadCount();
  const int64_t size = 300;
  const Stored a(DType::kBF16, size, size, size, 1);
  const Stored b(DType::kBF16, size, size, size, 7);
  std::vector<Stored> results;
  for (const int count : {1, 2, 5}) {
    SetThreadCount(count);
    results.emplace_back(DType::kF32, size, size, size, 3);
    matmul_panels::Multiply({size,
                             size,
                             size,
                             DType::kBF16,
                             {a.tensor.view().data, size},
                             {b.tensor.view().data, size, true},
                             0.0F,
                             DType::kF32,
                             results.back().tensor.view().data,
                             size});
    EXPECT_EQ(std::memcmp(results.back().tensor.view().data, results.front().tensor.view().data,
                          static_cast<size_t>(size * size) * sizeof(float)),
              0);
  }
  SetThreadCount(threads);
}

// Each unit of this CPU, not only the fastest.
TEST_F(PanelBackend, UnitsMatchPlainLoops) {
  constexpr int64_t kDepth = 3 * panels::kBlock;
  const Stored a(DType::kBF16, panels::kPanel, kDepth, kDepth, 1);
  const Stored b(DType::kBF16, panels::kPanel, kDepth, kDepth, 1000003);
  std::vector<uint32_t> packed_a(3 * panels::kBlockWords);
  std::vector<uint32_t> packed_b(3 * panels::kBlockWords);
  const auto pack = [](panels::Operand operand, const Stored& from, std::vector<uint32_t>& to) {
    for (int64_t block = 0; block < 3; ++block) {
      const auto* data = static_cast<const uint16_t*>(from.tensor.view().data) + block * panels::kBlock;
      panels::PackPanelBlock(operand, {data, kDepth, false}, panels::kPanel, panels::kBlock,
                             to.data() + block * panels::kBlockWords);
    }
  };
  pack(panels::Operand::kA, a, packed_a);
  pack(panels::Operand::kB, b, packed_b);
  for (const panels::PanelUnit* unit : {panels::Avx512Bf16Unit(), panels::AmxUnit()}) {
    if (unit == nullptr) continue;
    std::vector<float> sums(panels::kProductFloats, NAN);
    const panels::PanelScope scope(*unit);
    unit->multiply(packed_a.data(), packed_b.data(), 1, /*continues=*/false, sums.data());
    unit->multiply(packed_a.data() + panels::kBlockWords, packed_b.data() + panels::kBlockWords, 2,
                   /*continues=*/true, sums.data());
    for (int64_t i = 0; i < panels::kPanel; ++i) {
      for (int64_t j = 0; j < panels::kPanel; ++j) {
        double sum = 0.0;
        for (int64_t k = 0; k < kDepth; ++k) sum += static_cast<double>(a.Get(i, k)) * b.Get(j, k);
        const int64_t quadrant = i / panels::kTile * 2 + j / panels::kTile;
        const int64_t in_quadrant = i % panels::kTile * panels::kTile + j % panels::kTile;
        EXPECT_NEAR(sums[static_cast<size_t>(quadrant * panels::kTileWords + in_quadrant)], sum, 1e-4);
      }
    }
  }
}

TEST_F(PanelBackend, RoundsToBf16AsToBF16Does) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> values = {
      0.0F,           -0.0F,    1.00390625F, 1.01171875F, 3.0e38F,
      -3.4028235e38F, infinity, -infinity,   NAN,         std::nextafter(1.00390625F, 2.0F),
      1e-30F};
  for (const float value : values) {
    float sums[32 * 32];
    std::fill(std::begin(sums), std::end(sums), value);
    BF16 rounded[32 * 32];
    panels::StoreBf16Rows(sums, 32, reinterpret_cast<uint16_t*>(rounded), 32);
    for (const BF16 result : rounded) {
      const BF16 expected = ToBF16(value);
      EXPECT_EQ(std::memcmp(&result, &expected, sizeof(BF16)), 0) << value;
    }
  }
}

// Runs one product on copies of its operands that start `offset` elements after a 64-byte boundary.
std::vector<float> ResultAtOffset(int64_t m, int64_t n, int64_t k, int64_t offset, bool transpose_a = false,
                                  bool transpose_b = true) {
  const auto place = [offset](int64_t elements, int64_t salt) {
    Tensor tensor = Tensor::Empty(DType::kF32, {elements + offset});
    for (int64_t i = 0; i < elements; ++i) {
      tensor.As<float>()[offset + i] = std::sin(static_cast<float>(i + salt));
    }
    return tensor;
  };
  const Tensor a = place(m * k, 0);
  const Tensor b = place(n * k, 7);
  const Tensor c = place(m * n, 0);
  Matmul(m, n, k, {a.As<float>() + offset, transpose_a ? m : k, transpose_a},
         {b.As<float>() + offset, transpose_b ? k : n, transpose_b}, 0.0F, c.As<float>() + offset, n);
  return {c.As<float>() + offset, c.As<float>() + offset + m * n};
}

TEST(Matmul, GivesTheSameBitsAtEveryAlignment) {
  for (const auto& [m, n, k] :
       {std::array<int64_t, 3>{64, 96, 100}, {33, 131, 60}, {600, 70, 600}, {7, 5, 9000}}) {
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        const std::vector<float> aligned = ResultAtOffset(m, n, k, 0, transpose_a, transpose_b);
        for (const int64_t offset : {1, 4, 16, 31}) {
          EXPECT_EQ(ResultAtOffset(m, n, k, offset, transpose_a, transpose_b), aligned)
              << m << "x" << n << "x" << k << " at " << offset;
        }
      }
    }
  }
}

TEST(Matmul, GivesTheSameBitsOnConcurrentThreads) {
  const std::vector<float> alone = ResultAtOffset(96, 80, 300, 0);
  std::vector<std::vector<float>> results(4);
  std::vector<std::thread> callers;
  const int threads = ThreadCount();
  for (auto& result : results) {
    callers.emplace_back([&result, threads] {
      SetThreadCount(threads);
      for (int repeat = 0; repeat < 20; ++repeat) result = ResultAtOffset(96, 80, 300, 0);
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const auto& result : results) EXPECT_EQ(result, alone);
}

}  // namespace
}  // namespace weft
