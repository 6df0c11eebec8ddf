#include "src/mesh/base/gather_round.h"

#include <utility>

#include <absl/time/time.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace weft::internal {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

TEST(GatherRound, NamesItsTimeoutWithAtMostThreeDigitsAfterThePoint) {
  GatherRound round(2);
  round.Arrive(0, "");
  const auto error = [&](absl::Duration timeout) { return round.Result(timeout).status(); };
  for (const auto& [timeout, text] :
       {std::pair(absl::Nanoseconds(7'999'899'891), "within 8s;"),
        std::pair(absl::Nanoseconds(1'234'567'891), "within 1.235s;"),
        std::pair(absl::Nanoseconds(123'456'789), "within 123.457ms;"),
        std::pair(absl::Nanoseconds(999), "within 999ns;"), std::pair(absl::Seconds(600), "within 10m;"),
        std::pair(absl::InfiniteDuration(), "within inf;")}) {
    EXPECT_THAT(error(timeout), StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr(text)));
  }
}

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
