// Saves of processes that the system gives no thread.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/no_threads.h"
#include "tests/support/test_timeout.h"
#include "tests/train/checkpoint/checkpoint_fixture.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::kTestTimeout;
using ::weft::testing::NoThreads;
using ::weft::testing::StatusIs;

class ThreadShortage : public CheckpointTest {
 protected:
  // Ranks are threads of one process: rank 0 makes the shortage, and both ranks run `body` in it.
  static absl::Status Without(Bootstrap& bootstrap, const std::function<void()>& body) {
    const auto meet = [&] { return AgreeOnStatus(bootstrap, absl::OkStatus(), kTestTimeout); };
    std::optional<NoThreads> none;
    WEFT_RETURN_IF_ERROR(meet());
    if (bootstrap.rank() == 0) none.emplace();
    WEFT_RETURN_IF_ERROR(meet());
    body();
    return meet();
  }
};

TEST_F(ThreadShortage, EndsASaveWhoseWritersDoNotStart) {
  ASSERT_OK(OnRanks(2, [&](Bootstrap& bootstrap) -> absl::Status {
    SavedArrays state(ArrayCut::kByRows, bootstrap.rank(), 2);
    WEFT_ASSIGN_OR_RETURN(const auto saver, CheckpointSaver::Open(bootstrap, root(), options_));
    WEFT_RETURN_IF_ERROR(Without(bootstrap, [&] {
      EXPECT_OK(saver->Start(state.ToSave(1)));
      EXPECT_OK(saver->BeforeUpdate());  // Does not wait for a writer.
      EXPECT_TRUE(saver->CanAdvance());
      EXPECT_THAT(saver->Advance(), StatusIs(absl::StatusCode::kResourceExhausted,
                                             HasSubstr("cannot start a thread for saving a checkpoint")));
    }));
    EXPECT_FALSE(saver->saving());
    WEFT_RETURN_IF_ERROR(saver->Start(state.ToSave(2)));
    return saver->Finish();
  }));
  EXPECT_THAT(Names(), ::testing::ElementsAre("latest", "step-00000002"));
}

TEST_F(ThreadShortage, EndsASaveWhoseCommitDoesNotStart) {
  ASSERT_OK(OnRanks(2, [&](Bootstrap& bootstrap) -> absl::Status {
    SavedArrays state(ArrayCut::kByRows, bootstrap.rank(), 2);
    WEFT_ASSIGN_OR_RETURN(const auto saver, CheckpointSaver::Open(bootstrap, root(), options_));
    WEFT_RETURN_IF_ERROR(saver->Start(state.ToSave(1)));
    WEFT_RETURN_IF_ERROR(Without(bootstrap, [&] {
      EXPECT_OK(saver->Advance());  // Of the writers, which run already.
      EXPECT_TRUE(saver->CanAdvance());
      const std::string by = bootstrap.rank() == 0 ? "" : "rank 0: ";
      EXPECT_THAT(saver->Advance(),
                  StatusIs(absl::StatusCode::kResourceExhausted,
                           ::testing::StartsWith(by + "cannot start a thread for saving a checkpoint")));
    }));
    EXPECT_FALSE(saver->saving());
    WEFT_RETURN_IF_ERROR(saver->Start(state.ToSave(2)));
    return saver->Finish();
  }));
  EXPECT_THAT(Names(), ::testing::ElementsAre("latest", "step-00000002"));
}

}  // namespace
}  // namespace weft
