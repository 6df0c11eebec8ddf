// Output folders that rank 1 does not share with rank 0. Ranks are threads; one has mounts of its own.
#include <sched.h>

#include <filesystem>
#include <sys/mount.h>

#include "tests/train/train_run.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

// Gives the calling thread a file system of its own at `folder`. False: the process does not have the right.
bool MountPrivately(const std::string& folder) {
  return unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("tmpfs", folder.c_str(), "tmpfs", 0, nullptr) == 0;
}

class PrivateFolder : public TrainRun {
 protected:
  PrivateFolder() {
    std::filesystem::create_directory(outputs_);
    config_.parallel.dp_shard = 2;
  }

  // Trains on two ranks, of which rank 1 has another file system at `outputs_`. Expects that both end before
  // the first step with the same error, and leave nothing.
  void ExpectEndsBeforeTheFirstStep(const std::string& flag) {
    bool mounted = false;
    std::vector<absl::Status> ends(2);
    EXPECT_OK(RunThreadRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) -> absl::Status {
      const int rank = bootstrap.rank();
      if (rank == 1) mounted = MountPrivately(outputs_);
      WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, absl::OkStatus(), kFallbackTimeout));
      if (!mounted) return absl::OkStatus();
      TrainEnvironment environment;
      environment.on_step = [](const StepMetrics& metrics) { ADD_FAILURE() << "step " << metrics.step; };
      ends[static_cast<size_t>(rank)] = Train(bootstrap, config_, environment).status();
      return absl::OkStatus();
    }));
    if (!mounted) GTEST_SKIP() << "a thread with mounts of its own needs root";
    for (const absl::Status& end : ends) {
      EXPECT_THAT(end, StatusIs(absl::StatusCode::kNotFound, HasSubstr(flag)));
      EXPECT_THAT(end,
                  StatusIs(absl::StatusCode::kNotFound, HasSubstr("a file system that all ranks share")));
    }
    EXPECT_THAT(ends[0].message(), HasSubstr("rank 1: "));
    EXPECT_TRUE(std::filesystem::is_empty(outputs_));
  }

  const std::string outputs_ = folder_ / "outputs";
};

TEST_F(PrivateFolder, OfAnExportEndsTheRunBeforeItsFirstStep) {
  config_.output.export_folder = outputs_ + "/out";
  ExpectEndsBeforeTheFirstStep("--export-hf");
}

TEST_F(PrivateFolder, OfCheckpointsEndsTheRunBeforeItsFirstStep) {
  config_.checkpoint.folder = outputs_ + "/checkpoints";
  ExpectEndsBeforeTheFirstStep("--checkpoint-dir");
}

}  // namespace
}  // namespace weft
