// Scratch memory that products keep on each thread.
#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "src/nn/products/matmul_backend.h"
#include "src/nn/products/panel_kernels.h"
#include "tests/nn/take_from_system.h"
#include "weft/core/tensor.h"
#include "weft/nn/matmul.h"

namespace weft {
namespace {

// Products run on threads of their own, which have no scratch memory yet. The second one finds that of the
// library in the cache of the allocator.
TEST(MatmulScratch, HasTheBytesOfItsFormula) {
  constexpr int64_t kM = 70, kN = 1300, kK = 900;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (dtype == DType::kBF16 && panels::AmxUnit() != nullptr) continue;  // Packed panels come to it.
    for (const DType c_dtype : {dtype, DType::kF32}) {
      const bool in_f32 = !UsesNativeMatmul(dtype);
      std::vector<int64_t> expected;
      if (in_f32) expected = {kM * kK * 4, kK * kN * 4, c_dtype == DType::kF32 ? 0 : kM * kN * 4};
      EXPECT_EQ(MatmulScratchBytes(dtype, {{{kM, kN, kK, c_dtype}, {kM, 1, 1, c_dtype}}}),
                std::accumulate(expected.begin(), expected.end(), int64_t{0}));
      const Tensor a = Tensor::Zeros(dtype, {kM, kK});
      const Tensor b = Tensor::Zeros(dtype, {kK, kN});
      const Tensor c = Tensor::Empty(c_dtype, {kM, kN});
      const auto multiply = [&] {
        Matmul(kM, kN, kK, dtype, {a.view().data, kK}, {b.view().data, kN}, 0.0F, c_dtype, c.view().data, kN);
      };
      std::thread(multiply).join();
      std::vector<Tensor> taken;
      int64_t from_system = 0;
      for (const int64_t bytes : expected) from_system += TakeFromSystem(bytes, taken);
      const int64_t before = TensorBytesFromSystem();
      std::thread(multiply).join();
      EXPECT_EQ(TensorBytesFromSystem() - before, from_system) << Name(dtype) << " " << Name(c_dtype);
    }
  }
}

TEST(MatmulScratch, KeepsSumsOfPanelsBetweenDepths) {
  const auto sum_bytes = [](int64_t k) {
    return matmul_panels::WaitingSumBytes({.m = 64,
                                           .n = 96,
                                           .k = k,
                                           .factor_dtype = DType::kBF16,
                                           .a = {},
                                           .b = {},
                                           .beta = 0,
                                           .c_dtype = DType::kF32,
                                           .c = nullptr,
                                           .c_leading = 96});
  };
  EXPECT_EQ(sum_bytes(32), 0);
  EXPECT_EQ(sum_bytes(int64_t{1} << 20), 64 * 96 * 4);
}

}  // namespace
}  // namespace weft
