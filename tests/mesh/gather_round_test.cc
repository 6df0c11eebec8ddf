#include "src/mesh/base/gather_round.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace weft::internal {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

// Emulated nodes take the addresses of one process. Each may have an equal share of those that are left.
TEST(NodeReservations, TakeTheAddressesThatWereFreeBeforeTheFirstOfThem) {
  constexpr size_t kBytes = size_t{1} << 20;
  constexpr int kNodes = 2;
  NodeReservations reservations;
  size_t addresses = kNodes * kBytes;
  const auto reserve = [&](int node, ReservationNumber number) {
    const absl::Status status =
        reservations
            .Segments(node, {node}, number, kBytes,
                      [&]() -> absl::StatusOr<FreeMemory> {
                        return FreeMemory{.host = size_t{1} << 40, .address_space = addresses / kNodes};
                      })
            .status();
    if (status.ok()) addresses -= kBytes;
    return status;
  };
  for (int node = 0; node < kNodes; ++node) EXPECT_OK(reserve(node, {}));
  EXPECT_THAT(reserve(0, {.gathers = 1}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("ulimit -v")));
}

}  // namespace
}  // namespace weft::internal
