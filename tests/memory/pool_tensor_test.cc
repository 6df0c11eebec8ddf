#include "weft/memory/pool_tensor.h"

#include <memory>
#include <optional>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "weft/mesh/thread_bootstrap.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

class PoolTensorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ranks_ = MakeThreadBootstraps(NodeMap::OneNode(1));
    ASSERT_OK_AND_ASSIGN(heap_, NodeHeap::Create(*ranks_[0], {.segment_bytes = 1 << 20}));
    pool_.emplace(*heap_, "keys");
  }

  std::vector<std::unique_ptr<Bootstrap>> ranks_;
  std::unique_ptr<NodeHeap> heap_;
  std::optional<BufferPool> pool_;
};

TEST_F(PoolTensorTest, IsRowMajorInNodeMemory) {
  ASSERT_OK_AND_ASSIGN(const Tensor tensor, PoolTensor(*pool_, DType::kBF16, {2, 3, 5}));
  EXPECT_TRUE(heap_->AddressOf(tensor.view().data).has_value());
  EXPECT_TRUE(tensor.view().IsContiguous());
  EXPECT_EQ(tensor.shape(), (Shape{2, 3, 5}));
  EXPECT_EQ(tensor.bytes(), 60);
  EXPECT_EQ(pool_->in_use_bytes(), 64);
}

TEST_F(PoolTensorTest, ReturnsItsBlockWithTheLastCopy) {
  ASSERT_OK_AND_ASSIGN(std::optional<Tensor> tensor, PoolTensor(*pool_, DType::kF32, {16}));
  std::optional<Tensor> view = tensor->Reshape({4, 4});
  tensor.reset();
  EXPECT_EQ(pool_->in_use_bytes(), 64);
  view.reset();
  EXPECT_EQ(pool_->in_use_bytes(), 0);
  EXPECT_EQ(pool_->idle_bytes(), 64);
}

TEST_F(PoolTensorTest, HasMemoryEvenWithoutElements) {
  ASSERT_OK_AND_ASSIGN(const Tensor tensor, PoolTensor(*pool_, DType::kF32, {4, 0}));
  EXPECT_TRUE(tensor.defined());
  EXPECT_EQ(tensor.elements(), 0);
}

TEST_F(PoolTensorTest, NamesTheFullPoolInTheError) {
  constexpr int64_t kRows = int64_t{1} << 31;  // The product of bytes is 0 in 64 bits.
  for (const Shape& shape : {Shape{1 << 20}, Shape{kRows, kRows}, Shape{kRows, kRows, kRows}}) {
    EXPECT_THAT(PoolTensor(*pool_, DType::kF32, shape).status(),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("keys")));
  }
}

}  // namespace
}  // namespace weft
