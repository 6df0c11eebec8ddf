#include "weft/optim/muon.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/optim/matrix_owners.h"
#include "tests/optim/torch_values.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

using ::testing::FloatNear;
using ::testing::Pointwise;

// Values after three steps of torch.optim.Muon (2.13.0): with its products in bf16, and in f32.
struct TorchRun {
  int64_t rows, cols;
  MuonLrScale lr_scale;
  std::vector<float> in_bf16, in_f32;
};
const TorchRun kRuns[] = {
    {4,
     3,
     MuonLrScale::kOriginal,
     {-0.275318056F, 0.494515896F, 0.411299229F, 0.345358402F, 0.0877324343F, 0.0821549296F, 0.147358745F,
      0.0319604054F, -0.204450369F, -0.0603698529F, -0.226333827F, 0.0288100094F},
     {-0.272342056F, 0.493267983F, 0.41060099F, 0.347787768F, 0.0869225487F, 0.0794772804F, 0.148221731F,
      0.0330803581F, -0.205294356F, -0.0612016767F, -0.224447682F, 0.0298911352F}},
    {3,
     4,
     MuonLrScale::kMatchRmsAdamW,
     {-0.413629919F, 0.392148286F, 0.334713519F, 0.350245297F, 0.201750681F, 0.0994221717F, 0.137379095F,
      0.0961464494F, -0.0857372582F, -0.0756427944F, -0.120061308F, -0.151096195F},
     {-0.41276902F, 0.392347246F, 0.334822893F, 0.350768328F, 0.201141849F, 0.100051582F, 0.137398407F,
      0.0955694169F, -0.0856730938F, -0.0757353604F, -0.120894618F, -0.150559485F}},
};

TEST(Muon, GivesTheValuesOfTorch) {
  for (const TorchRun& run : kRuns) {
    const int64_t count = run.rows * run.cols;
    const MuonOptions options{.lr = 0.1, .weight_decay = 0.1, .lr_scale = run.lr_scale};
    std::vector<float> param = testing::FixtureParam(count);
    std::vector<float> momentum(static_cast<size_t>(count));
    for (int step = 0; step < 3; ++step) {
      std::vector<float> update = testing::FixtureGrad(step, count);
      MuonDirection(options, 1.0, update.data(), momentum.data(), count);
      Orthogonalize(options, update.data(), run.rows, run.cols);
      MuonUpdate(options, MuonLrFactor(options.lr_scale, {run.rows, run.cols}), param.data(), update.data(),
                 count);
    }
    EXPECT_THAT(param, Pointwise(FloatNear(2e-6F), run.in_f32));
    EXPECT_THAT(param, Pointwise(FloatNear(4e-3F), run.in_bf16));  // Three updates of about 0.1.
  }
}

using Matrix = std::vector<double>;

Matrix Multiply(const Matrix& a, const Matrix& b, int64_t m, int64_t k, int64_t n) {
  Matrix c(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t l = 0; l < k; ++l) {
      for (int64_t j = 0; j < n; ++j) c[i * n + j] += a[i * k + l] * b[l * n + j];
    }
  }
  return c;
}

Matrix Transpose(const Matrix& a, int64_t rows, int64_t cols) {
  Matrix t(a.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) t[j * rows + i] = a[i * cols + j];
  }
  return t;
}

// The iteration of rows <= cols in doubles, by its definition.
Matrix IterateInDoubles(const MuonOptions& options, Matrix x, int64_t rows, int64_t cols) {
  double norm = 0;
  for (const double value : x) norm += value * value;
  for (double& value : x) value /= std::sqrt(norm);
  const auto [a, b, c] = options.coefficients;
  for (int step = 0; step < options.iterations; ++step) {
    const Matrix gram = Multiply(x, Transpose(x, rows, cols), rows, cols, rows);
    const Matrix one = Multiply(gram, x, rows, rows, cols);
    const Matrix two = Multiply(gram, one, rows, rows, cols);
    for (size_t i = 0; i < x.size(); ++i) x[i] = a * x[i] + b * one[i] + c * two[i];
  }
  return x;
}

std::vector<float> SomeMatrix(int64_t count) {
  std::vector<float> matrix;
  uint32_t state = 7;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 1664525U + 1013904223U;
    matrix.push_back(static_cast<float>(state >> 8) / 8388608.0F - 1.0F);
  }
  return matrix;
}

// Sizes of one block of a product and of several, with a rest. Blocks have 64 or 128 rows.
TEST(Orthogonalize, EqualsTheIterationInDoublesForWideAndTallMatrices) {
  const MuonOptions options;
  for (const auto& [rows, cols] :
       {std::pair<int64_t, int64_t>{1, 1}, {1, 5}, {7, 3}, {131, 140}, {270, 129}}) {
    std::vector<float> matrix = SomeMatrix(rows * cols);
    Matrix expected(matrix.begin(), matrix.end());
    if (rows > cols) {
      expected =
          Transpose(IterateInDoubles(options, Transpose(expected, rows, cols), cols, rows), cols, rows);
    } else {
      expected = IterateInDoubles(options, expected, rows, cols);
    }
    Orthogonalize(options, matrix.data(), rows, cols);
    double largest = 0;
    for (size_t i = 0; i < matrix.size(); ++i) largest = std::max(largest, std::abs(matrix[i] - expected[i]));
    EXPECT_LT(largest, 2e-5) << rows << "x" << cols;
  }
}

TEST(Orthogonalize, GivesTheSameBitsWithAnyThreadCount) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{260, 140}, {140, 390}, {8, 4000}}) {
    std::vector<std::vector<float>> results;
    for (const int threads : {1, 2, 3}) {
      SetThreadCount(threads);
      results.push_back(SomeMatrix(rows * cols));
      Orthogonalize({}, results.back().data(), rows, cols);
    }
    SetThreadCount(1);
    EXPECT_EQ(results[1], results[0]);
    EXPECT_EQ(results[2], results[0]);
  }
}

TEST(Orthogonalize, LeavesAZeroMatrixAlone) {
  std::vector<float> matrix(12);
  Orthogonalize({}, matrix.data(), 3, 4);
  EXPECT_THAT(matrix, ::testing::Each(0.0F));
}

TEST(AssignMatrices, BalancesWorkAndBoundsTheElementsThatMove) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    // Layers of four square matrices and three of 8/3 of their size, cut in equal ranges of a layer, as by
    // rows, or each whole at one rank.
    for (const int cut : {0, 1, 2}) {
      std::vector<MatrixWork> matrices;
      for (int layer = 0; layer < 8; ++layer) {
        constexpr int64_t kSizes[] = {840, 840, 840, 840, 2240, 2240, 2240};
        constexpr int64_t kLayer = 4 * 840 + 3 * 2240;
        int64_t begin = 0;
        for (const int64_t size : kSizes) {
          MatrixWork matrix{static_cast<double>(size), {}};
          for (int rank = 0; rank < ranks; ++rank) {
            const int64_t first = std::max(begin, kLayer * rank / ranks);
            const int64_t last = std::min(begin + size, kLayer * (rank + 1) / ranks);
            const int64_t rows = size * (rank + 1) / ranks - size * rank / ranks;
            const int64_t whole = layer % ranks == rank ? size : 0;
            matrix.held.push_back(cut == 0 ? std::max<int64_t>(0, last - first) : cut == 1 ? rows : whole);
          }
          begin += size;
          matrices.push_back(matrix);
        }
      }
      double total = 0, largest = 0;
      int64_t moved = 0;
      std::vector<double> load(static_cast<size_t>(ranks));
      std::vector<bool> taken(matrices.size());
      for (const MatrixTurn& turn : AssignMatrices(matrices, ranks)) {
        const MatrixWork& matrix = matrices[turn.matrix];
        EXPECT_FALSE(taken[turn.matrix]);
        taken[turn.matrix] = true;
        load[static_cast<size_t>(turn.owner)] += matrix.operations;
        moved += static_cast<int64_t>(matrix.operations) - matrix.held[static_cast<size_t>(turn.owner)];
        total += matrix.operations;
        largest = std::max(largest, matrix.operations);
      }
      EXPECT_THAT(taken, ::testing::Each(true));
      EXPECT_LE(moved * ranks, static_cast<int64_t>(total) * (ranks - 1)) << ranks << " ranks, cut " << cut;
      EXPECT_LE(*std::max_element(load.begin(), load.end()), total / ranks + largest)
          << ranks << " ranks, cut " << cut;
    }
  }
}

// By work alone, 18 of the 26 elements would move.
TEST(AssignMatrices, PassesOverARankThatWouldReceiveTooMuch) {
  const std::vector<MatrixWork> matrices = {{8, {8, 0}}, {7, {7, 0}}, {6, {6, 0}}, {5, {0, 5}}};
  int64_t kept = 0;
  for (const MatrixTurn& turn : AssignMatrices(matrices, 2)) {
    kept += matrices[turn.matrix].held[static_cast<size_t>(turn.owner)];
  }
  EXPECT_GE(kept, 13);
  EXPECT_LT(kept, 26);
}

}  // namespace
}  // namespace weft
