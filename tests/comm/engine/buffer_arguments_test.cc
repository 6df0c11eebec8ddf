// Buffers of collectives and messages must fit a memory, be there, and be aligned to their elements.
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tests/comm/support/arguments_fixture.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;

using BufferArguments = ArgumentsFixture;

TEST_F(BufferArguments, CountsMustFitAMemory) {
  constexpr int64_t kMany = int64_t{1} << 62;
  const std::vector<int64_t> many = {kMany};
  constexpr const char* kMessage = "a count of 4611686018427387904 f32 is too large";
  ExpectRefused(engine().AllGather(lane(), memory(), memory(), DType::kF32, kMany), HasSubstr(kMessage));
  ExpectRefused(engine().AllGather(lane(), memory(), memory(), DType::kF32, 4, many), HasSubstr(kMessage));
  ExpectRefused(engine().ReduceScatter(lane(), memory(), memory(), DType::kF32, kMany, ReduceOp::kSum),
                HasSubstr(kMessage));
  ExpectRefused(engine().AllReduce(lane(), memory(), memory(), DType::kF32, kMany, ReduceOp::kSum),
                HasSubstr(kMessage));
  ExpectRefused(engine().Broadcast(lane(), memory(), DType::kF32, kMany, 0), HasSubstr(kMessage));
  ExpectRefused(engine().AllToAll(lane(), memory(), many, memory(), many, DType::kF32), HasSubstr(kMessage));
  const auto parts = PartRanges::Make({{{kMany - 4, 4}}}).value();
  ExpectRefused(engine().AllGather(lane(), memory(), memory(), DType::kF32, parts), HasSubstr(kMessage));
  ExpectRefused(engine().ReduceScatter(lane(), memory(), memory(), DType::kF32, ReduceOp::kSum, parts),
                HasSubstr(kMessage));
}

TEST_F(BufferArguments, SourceViewsMustFitAMemory) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const auto parts = PartRanges::Make({{{0, 4}}}).value();
  const auto refused = [&](const std::vector<SourceView>& views, const std::string& text) {
    ExpectRefused(engine().ReduceScatter(lane(), views, memory(), DType::kF32, ReduceOp::kSum, parts),
                  HasSubstr(text));
  };
  const std::string most_32_tib = absl::StrCat(kMost, " elements of f32; a buffer has at most 32 TiB");
  refused({{{1, kMost}, memory()}},
          absl::StrCat("reduce_scatter: view 0 begins at element 1 and has ", most_32_tib));
  refused({{{0, 4}, memory()}, {{kMost, 4}, memory()}},
          absl::StrCat("reduce_scatter: view 1 begins at element ", kMost,
                       " and has 4 elements of f32; a buffer"));
  refused({{{0, -1}, memory()}},
          "view 0 begins at element 0 and has -1 elements of f32; neither may be negative");
}

// A view with stride 0 has any number of elements in a few bytes.
TEST_F(BufferArguments, PartsMustFitAMemory) {
  const TensorView good = TensorView::Contiguous(memory(), DType::kF32, {2, 3});
  const Shape many = {int64_t{1} << 40, int64_t{1} << 30};
  const Shape too_many = {(int64_t{1} << 43) + 1};
  for (const Shape& shape : {many, too_many}) {
    const TensorView repeated{memory(), DType::kF32, shape, Shape(shape.size(), 0)};
    const TensorView large = TensorView::Contiguous(memory(), DType::kF32, shape);
    const std::string fault =
        absl::StrCat("rank 0: shape ", ToString(shape), " of f32 is too large; a buffer has at most 32 TiB");
    ExpectRefused(engine().AllToAll(lane(), {repeated}, {good}, DType::kF32),
                  HasSubstr(absl::StrCat("all_to_all, send to ", fault)));
    ExpectRefused(engine().SendReceive(lane(), good, 0, large, 0),
                  HasSubstr(absl::StrCat("send_receive, receive from ", fault)));
  }
}

TEST_F(BufferArguments, BuffersOfSomeElementsMustNotBeNull) {
  const auto parts = PartRanges::Make({{{4, 4}}}).value();
  ExpectRefused(engine().AllGather(lane(), nullptr, memory(), DType::kF32, 4),
                HasSubstr("all_gather: the input of 4 elements is null"));
  ExpectRefused(engine().AllGather(lane(), memory(), nullptr, DType::kF32, 4),
                HasSubstr("all_gather: the output of 4 elements is null"));
  ExpectRefused(engine().AllGatherShared(lane(), nullptr, memory(), DType::kF32, 4), HasSubstr("the input"));
  ExpectRefused(engine().AllGatherDelta(lane(), nullptr, memory(), 4), HasSubstr("the base of 4"));
  ExpectRefused(engine().AllGatherDelta(lane(), memory(), nullptr, 4), HasSubstr("the output of 4"));
  ExpectRefused(engine().AllGather(lane(), nullptr, memory(), DType::kF32, parts),
                HasSubstr("the input of 4"));
  ExpectRefused(engine().AllGather(lane(), memory(), nullptr, DType::kF32, parts),
                HasSubstr("the output of 8"));
  ExpectRefused(engine().AllGatherDelta(lane(), nullptr, memory(), parts), HasSubstr("the base of 4"));
  ExpectRefused(engine().ReduceScatter(lane(), nullptr, memory(), DType::kF32, 4, ReduceOp::kSum),
                HasSubstr("reduce_scatter: the input of 4"));
  ExpectRefused(engine().ReduceScatter(lane(), memory(), nullptr, DType::kF32, 4, ReduceOp::kSum),
                HasSubstr("reduce_scatter: the output of 4"));
  ExpectRefused(engine().ReduceScatter(lane(), static_cast<const void*>(nullptr), memory(), DType::kF32,
                                       ReduceOp::kSum, parts),
                HasSubstr("the input of 8"));
  ExpectRefused(engine().ReduceScatter(lane(), memory(), nullptr, DType::kF32, ReduceOp::kSum, parts),
                HasSubstr("the output of 4"));
  ExpectRefused(engine().AllReduce(lane(), nullptr, memory(), DType::kF32, 4, ReduceOp::kSum),
                HasSubstr("all_reduce: the input of 4"));
  ExpectRefused(engine().AllReduce(lane(), memory(), nullptr, DType::kF32, 4, ReduceOp::kSum),
                HasSubstr("all_reduce: the output of 4"));
  ExpectRefused(engine().Broadcast(lane(), nullptr, DType::kF32, 4, 0),
                HasSubstr("broadcast: the buffer of 4"));
}

TEST_F(BufferArguments, BuffersWithoutElementsMayBeNull) {
  EXPECT_OK(engine().AllGather(lane(), nullptr, nullptr, DType::kF32, 0).WaitReleased());
  EXPECT_OK(engine().ReduceScatter(lane(), nullptr, nullptr, DType::kF32, 0, ReduceOp::kSum).WaitReleased());
  EXPECT_OK(engine().AllReduce(lane(), nullptr, nullptr, DType::kF32, 0, ReduceOp::kSum).WaitReleased());
  EXPECT_OK(engine().Broadcast(lane(), nullptr, DType::kF32, 0, 0).WaitReleased());
}

TEST_F(BufferArguments, BuffersMustBeAlignedToTheirElements) {
  constexpr DType kF32 = DType::kF32;
  void* const odd = static_cast<std::byte*>(memory()) + 2;
  const auto parts = PartRanges::Make({{{4, 4}}}).value();
  const std::vector<int64_t> four = {4};
  const auto refused = [&](Work work, const std::string& buffer) {
    ExpectRefused(std::move(work), HasSubstr(absl::StrCat(buffer,
                                                          " does not begin at a multiple of 4 bytes, the "
                                                          "size of f32; copy it to aligned memory")));
  };
  refused(engine().AllGather(lane(), odd, memory(), kF32, 4), "all_gather: the input");
  refused(engine().AllGather(lane(), memory(), odd, kF32, 4), "all_gather: the output");
  refused(engine().AllGather(lane(), odd, memory(), kF32, parts), "all_gather: the input");
  refused(engine().AllGather(lane(), memory(), odd, kF32, parts), "all_gather: the output");
  refused(engine().AllGatherShared(lane(), memory(), odd, kF32, 4), "all_gather_shared: the output");
  refused(engine().AllGatherDelta(lane(), odd, memory(), 4), "all_gather_delta: the base");
  refused(engine().AllGatherDelta(lane(), odd, memory(), parts), "all_gather_delta: the base");
  refused(engine().ReduceScatter(lane(), odd, memory(), kF32, 4, ReduceOp::kSum),
          "reduce_scatter: the input");
  refused(engine().ReduceScatter(lane(), memory(), odd, kF32, 4, ReduceOp::kSum),
          "reduce_scatter: the output");
  refused(engine().ReduceScatter(lane(), odd, memory(), kF32, ReduceOp::kSum, parts),
          "reduce_scatter: the input");
  refused(engine().ReduceScatter(lane(), memory(), odd, kF32, ReduceOp::kSum, parts),
          "reduce_scatter: the output");
  const std::vector<SourceView> views = {{{0, 4}, memory()}, {{4, 4}, odd}};
  refused(engine().ReduceScatter(lane(), views, memory(), kF32, ReduceOp::kSum, parts),
          "reduce_scatter: view 1: its data");
  refused(engine().AllReduce(lane(), odd, memory(), kF32, 4, ReduceOp::kSum), "all_reduce: the input");
  refused(engine().AllReduce(lane(), memory(), odd, kF32, 4, ReduceOp::kSum), "all_reduce: the output");
  refused(engine().Broadcast(lane(), odd, kF32, 4, 0), "broadcast: the buffer");
  refused(engine().AllToAll(lane(), odd, four, memory(), four, kF32),
          "all_to_all, send to rank 0: the data of a part");
  refused(engine().SendReceive(lane(), TensorView::Contiguous(memory(), kF32, {4}), 0,
                               TensorView::Contiguous(odd, kF32, {4}), 0),
          "send_receive, receive from rank 0: the data of a part");
  refused(engine().Send({0}, odd, kF32, 4), "send: the buffer");
  refused(engine().Receive({0}, odd, kF32, 4), "receive: the buffer");
}

TEST_F(BufferArguments, BuffersOfBytesOrWithoutElementsMayBeginAnywhere) {
  void* const odd = static_cast<std::byte*>(memory()) + 3;
  EXPECT_OK(engine().AllReduce(lane(), odd, odd, DType::kU8, 4, ReduceOp::kSum).WaitReleased());
  EXPECT_OK(engine().AllGather(lane(), odd, odd, DType::kF64, 0).WaitReleased());
  const TensorView empty = TensorView::Contiguous(odd, DType::kF64, {0});
  EXPECT_OK(engine().SendReceive(lane(), empty, 0, empty, 0).WaitReleased());
}

}  // namespace
}  // namespace weft::testing
