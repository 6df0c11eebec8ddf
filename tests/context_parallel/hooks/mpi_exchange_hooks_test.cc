#include <gtest/gtest.h>

#include "tests/context_parallel/support/slot_model.h"
#include "tests/support/mpi_world.h"
#include "tests/support/status_matchers.h"

namespace weft::testing {
namespace {

TEST(ExchangeHooksOverMpi, GiveConsumersTheTensorsOfAllRanks) {
  for (const int consumers : {1, 2}) {
    for (const bool has_source : {false, true}) {
      ASSERT_OK(CheckSlotAgainstOneRank(WorldBootstrap(), {.consumers = consumers}, has_source));
    }
  }
}

TEST(ExchangeHooksOverMpi, SeparateTheCallsOfOneInvocation) {
  ASSERT_OK(CheckSlotAgainstOneRank(WorldBootstrap(), {.consumers = 2}, true, /*calls=*/3));
}

}  // namespace
}  // namespace weft::testing
