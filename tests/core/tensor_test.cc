#include "weft/core/tensor.h"

#include <algorithm>
#include <cstdint>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::ElementsAre;

TEST(Tensor, IsAlignedToACacheLine) {
  for (const int64_t size : {0, 1, 3, 64, 1001}) {
    const Tensor tensor = Tensor::Empty(DType::kBF16, {size, 3});
    EXPECT_NE(tensor.As<BF16>(), nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.As<BF16>()) % 64, 0);
    EXPECT_EQ(tensor.bytes(), static_cast<size_t>(size) * 6);
  }
}

TEST(Tensor, ZerosHasOnlyZeroElements) {
  const Tensor tensor = Tensor::Zeros(DType::kF32, {7, 11});
  EXPECT_TRUE(
      std::all_of(tensor.As<float>(), tensor.As<float>() + 77, [](float value) { return value == 0; }));
}

TEST(Tensor, ScalarOwnsOneElementWithoutDims) {
  const Tensor tensor = Tensor::Scalar(2.5F);
  EXPECT_EQ(tensor.dtype(), DType::kF32);
  EXPECT_THAT(tensor.shape(), ElementsAre());
  EXPECT_NE(tensor.storage(), nullptr);
  EXPECT_EQ(*tensor.As<float>(), 2.5F);
}

TEST(Tensor, SharesMemoryWithItsCopiesAndReshapes) {
  Tensor reshaped;
  EXPECT_FALSE(reshaped.defined());
  {
    const Tensor tensor = Tensor::Zeros(DType::kI32, {2, 6});
    reshaped = tensor.Reshape({3, 4});
    tensor.As<int32_t>()[7] = 5;
  }
  EXPECT_TRUE(reshaped.defined());
  EXPECT_THAT(reshaped.shape(), ElementsAre(3, 4));
  EXPECT_EQ(reshaped.dim(0), 3);
  EXPECT_EQ(reshaped.dim(-1), 4);
  EXPECT_EQ(reshaped.As<int32_t>()[7], 5);
}

TEST(Tensor, NeverSharesMemoryWithAnotherLiveTensor) {
  // Large tensors of a few sizes, created and destroyed in an order that leaves blocks for reuse.
  std::vector<Tensor> tensors(20);
  for (int round = 0; round < 400; ++round) {
    Tensor& tensor = tensors[static_cast<size_t>(round * 7 % 20)];
    const int64_t rows = 20000 + round % 5 * 9000;
    if (tensor.defined()) {
      const auto* values = tensor.As<int32_t>();
      ASSERT_TRUE(
          std::all_of(values, values + tensor.elements(), [values](int32_t v) { return v == values[0]; }));
    }
    tensor = Tensor::Empty(DType::kI32, {rows});
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.As<int32_t>()) % 64, 0);
    std::fill_n(tensor.As<int32_t>(), rows, round);
  }
}

TEST(Tensor, MayBeDestroyedByAnotherThread) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([thread] {
      for (int round = 0; round < 50; ++round) {
        Tensor tensor = Tensor::Empty(DType::kI32, {30000 + 1000 * (round % 3)});
        std::fill_n(tensor.As<int32_t>(), tensor.elements(), thread);
        std::thread([thread, tensor = std::move(tensor)] {
          EXPECT_EQ(tensor.As<int32_t>()[29999], thread);
        }).join();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Tensor, CountsBytesAllocatedFromTheSystem) {
  const int64_t before = TensorBytesFromSystem();
  const Tensor large = Tensor::Empty(DType::kI32, {3000000});
  EXPECT_GE(TensorBytesFromSystem() - before, 12000000);
  EXPECT_LE(TensorBytesFromSystem() - before, 14000000);
  const int64_t after = TensorBytesFromSystem();
  EXPECT_EQ(Tensor::Borrow(large.view()).As<int32_t>(), large.As<int32_t>());
  EXPECT_EQ(TensorBytesFromSystem(), after);
}

TEST(Tensor, TakesNoMoreThanASizeThatNeedsNoRounding) {
  for (const int64_t bytes : {1 << 20, 5 << 20, 64 << 20}) {
    const int64_t before = TensorBytesFromSystem();
    const Tensor tensor = Tensor::Empty(DType::kI8, {bytes});
    EXPECT_LE(TensorBytesFromSystem() - before, bytes);  // Less if a freed block is used again.
  }
}

TEST(Tensor, ThrowsIfThereIsNoMemory) {
  constexpr int64_t kMoreThanAnAddressSpace = int64_t{1} << 60;
  const int64_t before = TensorBytesFromSystem();
  EXPECT_THROW(Tensor::Empty(DType::kF32, {kMoreThanAnAddressSpace}), std::bad_alloc);
  EXPECT_THROW(Tensor::Zeros(DType::kF32, {kMoreThanAnAddressSpace}), std::bad_alloc);
  constexpr int64_t kRows = int64_t{1} << 31;  // The product of bytes is 0 in 64 bits.
  EXPECT_THROW(Tensor::Empty(DType::kF32, {kRows, kRows}), std::bad_alloc);
  EXPECT_EQ(TensorBytesFromSystem(), before);
}

TEST(Tensor, BorrowsWithoutOwning) {
  float value = 3;
  const Tensor tensor = Tensor::Borrow(TensorView::Contiguous(&value, DType::kF32, {1}));
  EXPECT_EQ(tensor.As<float>(), &value);
}

TEST(Tensor, CopiesAWindowIntoNewMemory) {
  const Tensor tensor = Tensor::Empty(DType::kI32, {2, 3});
  for (int32_t i = 0; i < 6; ++i) tensor.As<int32_t>()[i] = i;
  const Tensor column = tensor.Window(tensor.view().Slice(1, 1, 1));
  const Tensor copy = column.Copy();
  tensor.As<int32_t>()[4] = 40;
  EXPECT_EQ(copy.shape(), (Shape{2, 1}));
  EXPECT_TRUE(copy.view().IsContiguous());
  EXPECT_EQ(copy.As<int32_t>()[0], 1);
  EXPECT_EQ(copy.As<int32_t>()[1], 4);
  EXPECT_EQ(column.As<int32_t>()[3], 40);
}

}  // namespace
}  // namespace weft
