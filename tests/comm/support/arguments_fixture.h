// An engine of one rank whose collectives are given invalid arguments.
//
// Thread safety: one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/support/engine_fixture.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {

class ArgumentsFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    bootstraps_ = MakeThreadBootstraps(NodeMap::OneNode(1));
    ASSERT_OK_AND_ASSIGN(fixture_, EngineFixture::Make(*bootstraps_[0]));
    ASSERT_OK_AND_ASSIGN(buffer_, TestBuffer::Make(*fixture_.pool, true, DType::kF32, 64));
  }
  CommEngine& engine() { return *fixture_.engine; }
  void* memory() { return buffer_.data(); }
  LaneId lane() const { return fixture_.lane; }

  // Expects that the Work and the engine have failed, and that the engine works after a reset.
  void ExpectRefused(Work work, const ::testing::Matcher<const std::string&>& message) {
    EXPECT_TRUE(work.Test());
    EXPECT_EQ(work.DescribeWait(), "waits for nothing: it was refused");
    EXPECT_THAT(work.Wait(), StatusIs(absl::StatusCode::kInvalidArgument, message));
    EXPECT_THAT(work.WaitReleased(), StatusIs(absl::StatusCode::kInvalidArgument, message));
    EXPECT_THAT(engine().status(), StatusIs(absl::StatusCode::kInvalidArgument, message));
    EXPECT_EQ(engine().counters().operations, 0);
    EXPECT_OK(engine().ResetAfterError());
    EXPECT_OK(engine().status());
  }

  std::vector<std::unique_ptr<Bootstrap>> bootstraps_;
  EngineFixture fixture_;
  TestBuffer buffer_;
};

}  // namespace weft::testing
