#include <gtest/gtest.h>

#include "tests/memory/heap_conformance.h"
#include "tests/support/mpi_world.h"
#include "tests/support/status_matchers.h"
#include "weft/memory/node_heap.h"

namespace weft {
namespace {

using ::weft::testing::WorldBootstrap;

TEST(NodeHeapOverMpi, BlocksDoNotOverlapAndAreVisibleToTheNode) {
  EXPECT_OK(weft::testing::BlocksDoNotOverlapAndAreVisibleToTheNode(WorldBootstrap()));
}
TEST(NodeHeapOverMpi, AFullHeapReturnsAnError) {
  EXPECT_OK(weft::testing::AFullHeapReturnsAnError(WorldBootstrap()));
}
TEST(NodeHeapOverMpi, RanksChooseTheSameDefaultSize) {
  EXPECT_OK(weft::testing::RanksChooseTheSameDefaultSize(WorldBootstrap()));
}
TEST(NodeHeapOverMpi, RanksUseTheSmallestRequestedSize) {
  EXPECT_OK(weft::testing::RanksUseTheSmallestRequestedSize(WorldBootstrap()));
}

TEST(NodeHeapOverMpi, IsSharedBetweenProcessesIfANodeHasSeveralRanks) {
  ASSERT_OK_AND_ASSIGN(const auto heap, NodeHeap::Create(WorldBootstrap(), {.segment_bytes = 4096}));
  EXPECT_EQ(heap->shared_between_processes(), WorldBootstrap().size() > 1);
}

}  // namespace
}  // namespace weft
