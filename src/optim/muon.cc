#include "weft/optim/muon.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "weft/core/hash.h"
#include "weft/core/parallel.h"
#include "weft/core/status.h"
#include "weft/core/tensor.h"
#include "weft/core/vector_clones.h"
#include "weft/nn/matmul.h"

namespace weft {
namespace {

constexpr int64_t kGrain = int64_t{32} * 1024;
// Rows of a product that one thread computes. Those of a triangle are fewer: a block computes the elements
// of its square below the diagonal in vain.
constexpr int64_t kBlock = 128;
constexpr int64_t kTriangleBlock = 64;

// Sets the thread count of the calling thread to 1 while it lives: the bits of a product depend on it.
class OneThread {
 public:
  OneThread() { SetThreadCount(1); }
  ~OneThread() { SetThreadCount(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const int before_ = ThreadCount();
};

WEFT_VECTOR_CLONES void DirectionRun(float scale, float rate, float of_buffer, float* __restrict grad,
                                     float* __restrict buffer, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float g = grad[i] * scale;
    const float b = buffer[i] + rate * (g - buffer[i]);
    buffer[i] = b;
    grad[i] = g + of_buffer * (b - g);
  }
}

WEFT_VECTOR_CLONES void UpdateRun(float kept, float rate, float* __restrict param,
                                  const float* __restrict update, int64_t count) {
  for (int64_t i = 0; i < count; ++i) param[i] = param[i] * kept - rate * update[i];
}

WEFT_VECTOR_CLONES void ScaleRun(float factor, const float* __restrict from, float* __restrict to,
                                 int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[i] * factor;
}

// Sum of squares of a row, in an order that only its length determines.
double SumOfSquares(const float* values, int64_t count) {
  constexpr int64_t kSums = 8;
  std::array<double, kSums> sums = {};
  int64_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (int64_t j = 0; j < kSums; ++j) {
      const double value = values[i + j];
      sums[static_cast<size_t>(j)] += value * value;
    }
  }
  for (; i < count; ++i) sums[0] += static_cast<double>(values[i]) * values[i];
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

double FrobeniusNorm(const float* matrix, int64_t rows, int64_t cols) {
  std::vector<double> sums(static_cast<size_t>(rows));
  ParallelFor(rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(cols, 1)),
              [&](int64_t begin, int64_t end) {
                for (int64_t row = begin; row < end; ++row) {
                  sums[static_cast<size_t>(row)] = SumOfSquares(matrix + row * cols, cols);
                }
              });
  double total = 0;
  for (const double sum : sums) total += sum;
  return std::sqrt(total);
}

// Calls body(begin, end) for the blocks of [0, size), each with one thread.
template <typename Body>
void ForBlocks(int64_t size, const Body& body) {
  ParallelFor((size + kBlock - 1) / kBlock, 1, [&](int64_t first, int64_t last) {
    const OneThread one_thread;
    for (int64_t i = first; i < last; ++i) body(i * kBlock, std::min(size, (i + 1) * kBlock));
  });
}

// The same for blocks of a triangle, which differ in work: a thread takes the first with the last, the second
// with the last but one, and so on.
template <typename Body>
void ForTriangle(int64_t size, const Body& body) {
  const int64_t blocks = (size + kTriangleBlock - 1) / kTriangleBlock;
  ParallelFor((blocks + 1) / 2, 1, [&](int64_t first, int64_t last) {
    const OneThread one_thread;
    const auto run = [&](int64_t block) {
      body(block * kTriangleBlock, std::min(size, (block + 1) * kTriangleBlock));
    };
    for (int64_t i = first; i < last; ++i) {
      run(i);
      if (blocks - 1 - i != i) run(blocks - 1 - i);
    }
  });
}

// Copies the elements above the diagonal of a matrix [size, size] to their mirror images.
void MirrorUpper(float* matrix, int64_t size) {
  constexpr int64_t kTile = 32;  // Square tiles keep the transposed reads in the cache.
  ForTriangle(size, [&](int64_t begin, int64_t end) {
    for (int64_t tile = 0; tile < end; tile += kTile) {
      for (int64_t row = std::max(begin, tile); row < end; ++row) {
        for (int64_t col = tile; col < std::min(tile + kTile, row); ++col) {
          matrix[row * size + col] = matrix[col * size + row];
        }
      }
    }
  });
}

// The shorter side of a matrix [rows, cols] and the products along it.
struct Sides {
  int64_t rows, cols;

  bool is_tall() const { return rows > cols; }
  int64_t shorter() const { return std::min(rows, cols); }
  int64_t longer() const { return std::max(rows, cols); }
};

// The upper blocks of X X^T, or of X^T X for a tall X: of size [shorter, shorter].
void UpperGram(const float* x, const Sides& sides, float* gram) {
  const int64_t size = sides.shorter();
  const bool tall = sides.is_tall();
  ForTriangle(size, [&](int64_t begin, int64_t end) {
    const float* const part = x + (tall ? begin : begin * sides.cols);
    Matmul(end - begin, size - begin, sides.longer(), Factor{part, sides.cols, tall},
           Factor{part, sides.cols, !tall}, 0.0F, gram + begin * size + begin, size);
  });
}

// square = a I + b gram + c square, on and above the diagonal.
void CombineUpper(const std::array<double, 3>& coefficients, const float* gram, float* square, int64_t size) {
  const auto a = static_cast<float>(coefficients[0]);
  const auto b = static_cast<float>(coefficients[1]);
  const auto c = static_cast<float>(coefficients[2]);
  ForTriangle(size, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t i = row * size + row; i < (row + 1) * size; ++i) square[i] = b * gram[i] + c * square[i];
      square[row * size + row] += a;
    }
  });
}

// `to` = P X, or X P for a tall X.
void MultiplyAlongShorter(const float* polynomial, const float* x, const Sides& sides, float* to) {
  const int64_t size = sides.shorter();
  ForBlocks(sides.rows, [&](int64_t begin, int64_t end) {
    const Factor left = sides.is_tall() ? Factor{x + begin * sides.cols, sides.cols}
                                        : Factor{polynomial + begin * size, size};
    const Factor right = sides.is_tall() ? Factor{polynomial, size} : Factor{x, sides.cols};
    Matmul(end - begin, sides.cols, size, left, right, 0.0F, to + begin * sides.cols, sides.cols);
  });
}

}  // namespace

std::string_view Name(MuonLrScale scale) {
  return scale == MuonLrScale::kOriginal ? "original" : "match_rms_adamw";
}

double MuonLrFactor(MuonLrScale scale, const Shape& shape) {
  WEFT_CHECK(shape.size() == 2, "Muon updates matrices");
  const auto rows = static_cast<double>(shape[0]);
  const auto cols = static_cast<double>(shape[1]);
  return scale == MuonLrScale::kOriginal ? std::sqrt(std::max(1.0, rows / cols))
                                         : 0.2 * std::sqrt(std::max(rows, cols));
}

void MuonDirection(const MuonOptions& options, double gradient_scale, float* grad, float* momentum_buffer,
                   int64_t count) {
  const auto rate = static_cast<float>(1.0 - options.momentum);
  const auto of_buffer = options.nesterov ? static_cast<float>(options.momentum) : 1.0F;
  ParallelFor(count, kGrain, [&](int64_t begin, int64_t end) {
    DirectionRun(static_cast<float>(gradient_scale), rate, of_buffer, grad + begin, momentum_buffer + begin,
                 end - begin);
  });
}

void MuonUpdate(const MuonOptions& options, double lr_factor, float* param, const float* update,
                int64_t count) {
  const auto kept = static_cast<float>(1.0 - options.lr * options.weight_decay);
  const auto rate = static_cast<float>(options.lr * lr_factor);
  ParallelFor(count, kGrain, [&](int64_t begin, int64_t end) {
    UpdateRun(kept, rate, param + begin, update + begin, end - begin);
  });
}

void Orthogonalize(const MuonOptions& options, float* matrix, int64_t rows, int64_t cols) {
  if (rows == 0 || cols == 0) return;
  const Sides sides{rows, cols};
  const int64_t size = sides.shorter();
  const Tensor other = Tensor::Empty(DType::kF32, {rows, cols});
  const Tensor gram = Tensor::Empty(DType::kF32, {size, size});
  const Tensor polynomial = Tensor::Empty(DType::kF32, {size, size});
  const auto inverse = static_cast<float>(1.0 / std::max(FrobeniusNorm(matrix, rows, cols), options.eps));
  float* x = other.As<float>();
  float* next = matrix;
  ParallelFor(rows * cols, kGrain,
              [&](int64_t begin, int64_t end) { ScaleRun(inverse, matrix + begin, x + begin, end - begin); });
  for (int i = 0; i < options.iterations; ++i) {
    UpperGram(x, sides, gram.As<float>());
    MirrorUpper(gram.As<float>(), size);
    UpperGram(gram.As<float>(), {size, size}, polynomial.As<float>());
    CombineUpper(options.coefficients, gram.As<float>(), polynomial.As<float>(), size);
    MirrorUpper(polynomial.As<float>(), size);
    MultiplyAlongShorter(polynomial.As<float>(), x, sides, next);
    std::swap(x, next);
  }
  if (x != matrix) std::copy_n(x, rows * cols, matrix);
}

uint64_t HashOfOrthogonalize(const MuonOptions& options) {
  // More than one block in each dim, with a rest.
  constexpr int64_t kShorter = 200, kLonger = 1100;
  uint64_t hash = 0;
  for (const auto& [rows, cols] : {std::pair{kShorter, kLonger}, {kLonger, kShorter}}) {
    std::vector<float> matrix(static_cast<size_t>(kShorter * kLonger));
    for (size_t i = 0; i < matrix.size(); ++i) matrix[i] = static_cast<float>(i * 7919 % 2003) - 1001.0F;
    Orthogonalize(options, matrix.data(), rows, cols);
    hash = Hash64(matrix.data(), matrix.size() * sizeof(float), hash);
  }
  return hash;
}

double OrthogonalizeOperations(const MuonOptions& options, int64_t rows, int64_t cols) {
  const auto size = static_cast<double>(std::min(rows, cols));
  const auto longer = static_cast<double>(std::max(rows, cols));
  return options.iterations * (3 * size * size * longer + size * size * size);
}

}  // namespace weft
