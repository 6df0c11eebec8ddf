#include "weft/context_parallel/sharded_buffers.h"

#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/support/engine_fixture.h"
#include "tests/support/thread_ranks.h"
#include "weft/nn/linear.h"
#include "weft/nn/materialize.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// Elements first, first + 1, …
Tensor Counting(Shape shape, float first = 0) {
  Tensor tensor = Tensor::Empty(DType::kF32, std::move(shape));
  for (int64_t i = 0; i < tensor.elements(); ++i) tensor.As<float>()[i] = first + static_cast<float>(i);
  return tensor;
}

std::vector<float> Values(const Tensor& tensor) {
  const Tensor packed = tensor.Copy();
  return {packed.As<float>(), packed.As<float>() + packed.elements()};
}

using Body = absl::FunctionRef<absl::Status(BufferSharder&, int rank)>;

void WithSharder(const NodeMap& nodes, Body body, Module* model = nullptr) {
  RunRanks(nodes, [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const EngineFixture fixture, EngineFixture::Make(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<BufferSharder> sharder,
                          BufferSharder::Create(*fixture.engine, WorldGroup(bootstrap), model));
    return body(*sharder, bootstrap.rank());
  });
}

// Runs on one rank of two. Local functions need no peer.
void OnTheFirstOfTwo(Body body, Module* model = nullptr) {
  WithSharder(
      NodeMap::OneNode(2),
      [&](BufferSharder& sharder, int rank) { return rank == 0 ? body(sharder, rank) : absl::OkStatus(); },
      model);
}

TEST(ShardBuffers, HoldsPartsWhileTheScopeIsOpenAndTheWholeAfterIt) {
  const SequenceLayout layout = *SequenceLayout::HeadTail(7, 2);
  WithSharder(NodeMap::OneNode(2), [&](BufferSharder& sharder, int rank) -> absl::Status {
    Tensor ids = Counting({1, 7});
    Tensor table = Counting({7, 2});
    const void* memory = ids.view().data;
    {
      WEFT_ASSIGN_OR_RETURN(const ShardedBuffers scope,
                            sharder.ShardBuffers(layout, {&ids, &table}, {1, -2}));
      std::vector<float> expected;
      for (const TokenRange& range : layout.RangesOf(rank)) {
        for (int64_t at = range.begin; at < range.end(); ++at) expected.push_back(static_cast<float>(at));
      }
      EXPECT_EQ(Values(ids), expected);
      EXPECT_EQ(table.shape(), Shape({layout.TokensOf(rank), 2}));
    }
    EXPECT_EQ(ids.view().data, memory);
    EXPECT_EQ(Values(ids), Values(Counting({1, 7})));
    EXPECT_EQ(Values(table), Values(Counting({7, 2})));
    return absl::OkStatus();
  });
}

TEST(ShardBuffers, LeavesUnrestoredBuffersSharded) {
  OnTheFirstOfTwo([](BufferSharder& sharder, int) -> absl::Status {
    Tensor kept = Counting({4});
    Tensor restored = Counting({4});
    {
      WEFT_ASSIGN_OR_RETURN(
          const ShardedBuffers scope,
          sharder.ShardBuffers(*SequenceLayout::Contiguous(4, 2), {&kept, &restored}, {0, 0}, {&kept}));
    }
    EXPECT_THAT(Values(kept), ElementsAre(0, 1));
    EXPECT_THAT(Values(restored), ElementsAre(0, 1, 2, 3));
    return absl::OkStatus();
  });
}

TEST(ShardBuffers, RestoresWhenAnExceptionLeavesTheScope) {
  OnTheFirstOfTwo([](BufferSharder& sharder, int) -> absl::Status {
    const SequenceLayout layout = *SequenceLayout::Contiguous(4, 2);
    Tensor buffer = Counting({4});
    try {
      WEFT_ASSIGN_OR_RETURN(const ShardedBuffers scope, sharder.ShardBuffers(layout, {&buffer}, {0}));
      EXPECT_EQ(buffer.elements(), 2);
      throw std::runtime_error("in the middle");
    } catch (const std::runtime_error&) {
    }
    EXPECT_THAT(Values(buffer), ElementsAre(0, 1, 2, 3));
    return sharder.ShardBuffers(layout, {&buffer}, {0}).status();  // Succeeds, because the scope is closed.
  });
}

TEST(ShardBuffers, RefusesNestedScopes) {
  OnTheFirstOfTwo([](BufferSharder& sharder, int) -> absl::Status {
    const SequenceLayout layout = *SequenceLayout::Contiguous(4, 2);
    Tensor outer = Counting({4});
    Tensor inner = Counting({4});
    {
      WEFT_ASSIGN_OR_RETURN(ShardedBuffers scope, sharder.ShardBuffers(layout, {&outer}, {0}));
      const ShardedBuffers moved = std::move(scope);
      EXPECT_THAT(sharder.ShardBuffers(layout, {&inner}, {0}),
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("end the other first")));
      EXPECT_EQ(inner.elements(), 4);
    }
    return sharder.ShardBuffers(layout, {&inner}, {0}).status();
  });
}

TEST(ShardBuffers, ChangesNothingOnAnError) {
  OnTheFirstOfTwo([](BufferSharder& sharder, int) -> absl::Status {
    const SequenceLayout layout = *SequenceLayout::Contiguous(4, 2);
    Tensor a = Counting({4});
    Tensor b = Counting({5});
    Tensor none;
    EXPECT_THAT(sharder.ShardBuffers(layout, {&a}, {0, 0}),
                StatusIs(kInvalid, HasSubstr("1 buffers, but 2 sequence dims")));
    EXPECT_THAT(sharder.ShardBuffers(layout, {&a}, {0}, {&b}),
                StatusIs(kInvalid, HasSubstr("unrestored buffer 0 is not among the buffers")));
    EXPECT_THAT(sharder.ShardBuffers(layout, {&a, &b}, {0, 0}),
                StatusIs(kInvalid, AllOf(HasSubstr("buffer 1"), HasSubstr("5 tokens"))));
    EXPECT_THAT(sharder.ShardBuffers(layout, {&a, &a}, {0, 0}),
                StatusIs(kInvalid, AllOf(HasSubstr("buffer 1"), HasSubstr("listed before"))));
    EXPECT_THAT(sharder.ShardBuffers(layout, {&a, &none}, {0, 0}), StatusIs(kInvalid, HasSubstr("buffer 1")));
    EXPECT_THAT(sharder.ShardBuffers(layout, {nullptr}, {0}), StatusIs(kInvalid, HasSubstr("buffer 0")));
    EXPECT_THAT(sharder.ShardBuffers(*SequenceLayout::Contiguous(4, 3), {&a}, {0}),
                StatusIs(kInvalid, AllOf(HasSubstr("3 ranks"), HasSubstr("has 2"))));
    EXPECT_THAT(Values(a), ElementsAre(0, 1, 2, 3));
    return absl::OkStatus();
  });
}

TEST(ShardBuffers, RefusesTheDataOfAParameter) {
  Linear linear("proj", 3, 2);
  const MaterializedParameters memory(linear, /*seed=*/0, DType::kF32, DType::kF32);
  const auto refused = [&](BufferSharder& sharder, int) {
    Tensor row = Tensor::Borrow(linear.parameters()[0]->data.Slice(0, 1, 1));
    EXPECT_THAT(sharder.ShardBuffers(*SequenceLayout::Contiguous(3, 2), {&row}, {1}),
                StatusIs(kInvalid, HasSubstr("parameter 'proj.weight'")));
    return absl::OkStatus();
  };
  OnTheFirstOfTwo(refused, &linear);
}

TEST(UnshardBuffers, GivesTheWholeOnEveryRankForAnyDimAndLayout) {
  for (const int ranks : {1, 2, 3, 4}) {
    RunRanksOnEveryNodeMap(ranks, [ranks](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const EngineFixture fixture, EngineFixture::Make(bootstrap));
      WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<BufferSharder> sharder,
                            BufferSharder::Create(*fixture.engine, WorldGroup(bootstrap)));
      for (const SequenceLayout& layout :
           {*SequenceLayout::Contiguous(11, ranks), *SequenceLayout::HeadTail(11, ranks),
            *SequenceLayout::Create({1, 7, 3}, {.outer = ranks}), *SequenceLayout::Contiguous(2, ranks)}) {
        const int64_t tokens = layout.tokens();
        const Tensor rows = Counting({tokens, 3});
        const Tensor columns = Counting({2, 2, tokens}, 100);
        Tensor a = rows;
        Tensor b = columns;
        WEFT_ASSIGN_OR_RETURN(const ShardedBuffers scope, sharder->ShardBuffers(layout, {&a, &b}, {0, -1}));
        WEFT_ASSIGN_OR_RETURN(const std::vector<Tensor> whole,
                              sharder->UnshardBuffers(layout, {a, b}, {0, -1}));
        EXPECT_EQ(Values(whole[0]), Values(rows));
        EXPECT_EQ(Values(whole[1]), Values(columns));
        EXPECT_EQ(whole[1].shape(), columns.shape());
      }
      return absl::OkStatus();
    });
  }
}

TEST(UnshardBuffers, ReportsErrorsBeforeSending) {
  WithSharder(NodeMap::OneNode(2), [](BufferSharder& sharder, int rank) -> absl::Status {
    const SequenceLayout layout = *SequenceLayout::Contiguous(5, 2);
    const Tensor whole = Counting({5});
    EXPECT_THAT(sharder.UnshardBuffers(layout, {whole}, {0}),
                StatusIs(kInvalid, AllOf(HasSubstr("buffer 0"), HasSubstr(absl::StrCat("rank ", rank)))));
    EXPECT_THAT(sharder.UnshardBuffers(layout, {whole}, {}),
                StatusIs(kInvalid, HasSubstr("0 sequence dims")));
    return absl::OkStatus();
  });
}

// A peer may still use the memory of a failed gather, so no other gather gets it before the reset.
TEST(UnshardBuffers, LeavesTheMemoryOfAFailedCollectiveToTheEngine) {
  constexpr int64_t kTokens = 384 << 10;  // Tensors of this size take more than half of the heap.
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const EngineFixture fixture, EngineFixture::Make(bootstrap, {}, size_t{2} << 20));
    WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<BufferSharder> sharder,
                          BufferSharder::Create(*fixture.engine, WorldGroup(bootstrap)));
    const SequenceLayout layout = *SequenceLayout::Contiguous(kTokens, 2);
    const auto unshard = [&](DType dtype) {
      return sharder->UnshardBuffers(layout, {Tensor::Zeros(dtype, {kTokens / 2})}, {0}).status();
    };
    EXPECT_THAT(unshard(bootstrap.rank() == 0 ? DType::kF32 : DType::kI32),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("393216 i32")));
    EXPECT_THAT(unshard(DType::kF32),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("sequence buffers")));
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    WEFT_RETURN_IF_ERROR(fixture.engine->ResetAfterError());
    return unshard(DType::kF32);
  });
}

}  // namespace
}  // namespace weft::testing
