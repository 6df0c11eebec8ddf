#include <gtest/gtest.h>

#include "tests/memory/heap_conformance.h"
#include "tests/support/mpi_world.h"
#include "tests/support/status_matchers.h"
#include "weft/memory/node_heap.h"

namespace weft {
namespace {

using ::weft::testing::WorldBootstrap;

TEST(NodeHeapOverMpi, KeepsBlocksApartAndShared) {
  EXPECT_OK(weft::testing::KeepsBlocksApartAndShared(WorldBootstrap()));
}
TEST(NodeHeapOverMpi, SaysWhenItIsFull) { EXPECT_OK(weft::testing::SaysWhenItIsFull(WorldBootstrap())); }
TEST(NodeHeapOverMpi, AgreesOnASizeByItself) {
  EXPECT_OK(weft::testing::AgreesOnASizeByItself(WorldBootstrap()));
}
TEST(NodeHeapOverMpi, AgreesOnTheSizeThatIsAsked) {
  EXPECT_OK(weft::testing::AgreesOnTheSizeThatIsAsked(WorldBootstrap()));
}

TEST(NodeHeapOverMpi, IsSharedBetweenProcessesWhereANodeHasSeveral) {
  ASSERT_OK_AND_ASSIGN(const auto heap, NodeHeap::Create(WorldBootstrap(), {.segment_bytes = 4096}));
  EXPECT_EQ(heap->shared_between_processes(), WorldBootstrap().size() > 1);
}

}  // namespace
}  // namespace weft
