// Expectations of an engine that has met what no rank of its version sends.
#pragma once

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/support/core_end.h"

namespace weft::testing {

// Polls, and expects a failure of the engine that has these texts and the remedy, and that all ranks learn.
inline void ExpectBroadcastFailure(CoreEnd& end, const std::vector<std::string>& texts) {
  end.Poll();
  const absl::Status& status = end.core().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  for (const std::string& text : texts)
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(text));
  EXPECT_THAT(std::string(status.message()),
              ::testing::HasSubstr("run the same version of weft on all ranks"));
  ASSERT_TRUE(CoreEnd::FailureOnNode().has_value());
  EXPECT_EQ(CoreEnd::FailureOnNode()->cause, status);
  ASSERT_FALSE(end.wire().sent_messages.empty());
  EXPECT_EQ(end.wire().sent_messages.back().peer, 2);
  EXPECT_THAT(end.wire().sent_messages.back().bytes, ::testing::HasSubstr(std::string(status.message())));
}

}  // namespace weft::testing
