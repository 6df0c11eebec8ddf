// The order of additions does not depend on the node map, the slices or the windows.
#include "tests/comm/collectives/canonical_order.h"

#include <gtest/gtest.h>

#include "tests/support/test_timeout.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

EngineOptions SlicesOf(int64_t slice_bytes, int64_t slices_per_window) {
  EngineOptions options;
  options.timeout = kTestTimeout;
  options.slice_bytes = slice_bytes;
  options.piece_bytes = 2 * slice_bytes;
  options.lane_window_bytes = slices_per_window * slice_bytes;
  options.yield_window_bytes = slices_per_window * slice_bytes / 2;
  return options;
}

class CanonicalOrder : public ::testing::TestWithParam<int> {
 protected:
  static void Check(const NodeMap& nodes, const EngineOptions& options, const std::vector<DType>& dtypes,
                    int64_t count) {
    SCOPED_TRACE(absl::StrCat("slices of ", options.slice_bytes, " bytes"));
    RunRanks(nodes, [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, options));
      for (const DType dtype : dtypes) {
        WEFT_RETURN_IF_ERROR(CheckCanonicalOrder(fixture, dtype, count));
      }
      return absl::OkStatus();
    });
  }
};

TEST_P(CanonicalOrder, HoldsOnEveryNodeMapForTinySlices) {
  for (const NodeMap& nodes : NodeMapsOf(GetParam())) {
    // If a lane window holds one slice, the yield window is smaller than a slice. Lanes of lower priority
    // then advance only by their head slices.
    for (const int64_t slices_per_window : {1, 4}) {
      Check(nodes, SlicesOf(64, slices_per_window),
            {DType::kF32, DType::kF16, DType::kI32, DType::kI64, DType::kF64, DType::kU8}, 201);
    }
  }
}

TEST_P(CanonicalOrder, HoldsOnEveryNodeMapForMediumSlices) {
  for (const NodeMap& nodes : NodeMapsOf(GetParam())) {
    Check(nodes, SlicesOf(512, 4),
          {DType::kF32, DType::kF16, DType::kI32, DType::kI64, DType::kF64, DType::kU8}, 1601);
  }
}

TEST_P(CanonicalOrder, HoldsOnOneNodeForBF16) {
  Check(NodeMap::OneNode(GetParam()), SlicesOf(512, 4), {DType::kBF16}, 1601);
}

// Sums of share domains are not rounded, so bf16 keeps its bits, too. Between nodes it is rounded.
TEST_P(CanonicalOrder, HoldsOnNodesOfSeveralShareDomains) {
  for (const NodeMap& nodes : NumaMapsOf(GetParam())) {
    std::vector<DType> dtypes = {DType::kF32, DType::kF16, DType::kI32, DType::kI64, DType::kF64, DType::kU8};
    if (nodes.node_count() == 1) dtypes.push_back(DType::kBF16);
    Check(nodes, SlicesOf(256, 4), dtypes, 1601);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, CanonicalOrder, ::testing::Values(1, 2, 3, 4, 7));

using CanonicalOrderOfFour = CanonicalOrder;

TEST_P(CanonicalOrderOfFour, HoldsForDefaultSlices) {
  for (const NodeMap& nodes : NodeMapsOf(GetParam())) {
    EngineOptions options;
    options.timeout = kTestTimeout;
    Check(nodes, options, {DType::kF32}, 40'003);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, CanonicalOrderOfFour, ::testing::Values(4));

// A node sends several partial sums unless its ranks are an aligned power of two.
TEST(CanonicalOrderOnOddMaps, HoldsIfANodeSendsSeveralPartialSums) {
  for (const std::vector<int>& map : {std::vector<int>{0, 1, 0, 1}, {0, 1, 1, 0, 0}, {0, 0, 0, 1, 1, 1}}) {
    RunRanks(NodeMap{map}, [](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, SlicesOf(256, 3)));
      return CheckCanonicalOrder(fixture, DType::kF32, 333);
    });
  }
}

TEST(HybridReduction, OverShardsThenReplicasIsTheReductionOverAllRanks) {
  for (const auto& [ranks, shard_size] : {std::pair{4, 2}, {8, 4}, {8, 2}}) {
    for (const NodeMap& nodes : {NodeMap::OneNode(ranks), NodeMap::RanksPerNode(ranks, ranks / 2),
                                 NodeMap::RanksPerNode(ranks, 2), NodeMap::RanksPerNode(ranks, 1)}) {
      RunRanks(nodes, [&, size = shard_size](Bootstrap& bootstrap) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap, SlicesOf(256, 4)));
        return CheckHybridReduction(fixture, size, 1003);
      });
    }
  }
}

}  // namespace
}  // namespace weft::testing
