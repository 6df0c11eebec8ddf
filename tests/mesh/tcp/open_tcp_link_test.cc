// Opening of a TCP link from the texts that all ranks gather.
#include "src/mesh/tcp/open_tcp_link.h"

#include <string>
#include <string_view>
#include <sys/resource.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace weft::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

// Opens the link of rank 0, whose peer gathers `text`.
absl::Status OpenBeside(const std::string& text) {
  return OpenTcpLink(0, "lo",
                     [&](std::string_view own) {
                       return std::vector{std::string(own), text};
                     })
      .status();
}

TEST(OpenTcpLink, RaisesTheSoftLimitOnDescriptors) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low = {256, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_OK(OpenTcpLink(0, "lo", [](std::string_view own) { return std::vector{std::string(own)}; }));
  rlimit after = {};
  EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &after), 0);
  EXPECT_EQ(after.rlim_cur, before.rlim_max);
  setrlimit(RLIMIT_NOFILE, &before);
}

// As from a peer of another version.
TEST(OpenTcpLink, NamesTheRankWhoseTextIsNeitherAnEndpointNorAnError) {
  for (const char* const text : {"", "token host 80", "+", "+token host"}) {
    EXPECT_THAT(OpenBeside(text), StatusIs(absl::StatusCode::kInternal,
                                           AllOf(HasSubstr("rank 1: "), HasSubstr("no address of a link"))))
        << text;
  }
}

TEST(OpenTcpLink, ReturnsTheErrorOfARankWithoutALink) {
  EXPECT_THAT(OpenBeside(NoTcpLink("no such network")),
              StatusIs(absl::StatusCode::kFailedPrecondition, "rank 1: no such network"));
}

}  // namespace
}  // namespace weft::internal
