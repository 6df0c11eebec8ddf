// A program of its own: MPI cannot be initialized again after it was finalized.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "weft/mesh/mpi_bootstrap.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

TEST(MpiBootstrap, IsRefusedAfterAnEarlierOneFinalizedMpi) {
  ASSERT_OK(MakeMpiBootstrap());  // Destroyed here: it initialized MPI, so it finalizes MPI.
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_THAT(MakeMpiBootstrap(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("keep one bootstrap until the process ends, or initialize MPI yourself")));
  }
}

}  // namespace
}  // namespace weft
