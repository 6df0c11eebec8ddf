// Files of metrics and locks of runs that go on from a checkpoint.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <sys/file.h>
#include <sys/resource.h>
#include <thread>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "tests/train/checkpoint/resume_fixture.h"
#include "weft/train/checkpoint.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

TEST_F(ResumeTest, AppendsToTheMetricsWithoutRepeatedLines) {
  config_.output.metrics_file = folder_ / "run.jsonl";
  config_.checkpoint.folder = root();
  config_.optimizer.steps = kStop;
  Run({1, 2});
  // Lines of steps that were not saved, the last one torn.
  std::ofstream(config_.output.metrics_file, std::ios::app) << "{\"step\":5,\"loss\":1}\n{\"step\":6,\"lo";
  config_.checkpoint.resume = "auto";
  config_.optimizer.steps = kSteps;
  EXPECT_THAT(Printed({1, 2}, NodeMap::OneNode(2)),
              HasSubstr(absl::StrCat("metrics  the lines of steps after 4 are now in ",
                                     config_.output.metrics_file, ".1\n")));
  std::ifstream lines(config_.output.metrics_file);
  int64_t step = 0;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_THAT(line, HasSubstr(absl::StrCat("{\"step\":", ++step, ",")));
    EXPECT_THAT(line, HasSubstr("rss_bytes"));
  }
  EXPECT_EQ(step, kSteps);
  // The file could have been that of another run.
  EXPECT_EQ(ReadFile(config_.output.metrics_file + ".1"), "{\"step\":5,\"loss\":1}\n{\"step\":6,\"lo");
  EXPECT_FALSE(fs::exists(config_.output.metrics_file + ".2"));
}

TEST_F(ResumeTest, KeepsTheMetricsOfARunThatSavedNothing) {
  config_.output.metrics_file = folder_.Write("run.jsonl", "{\"step\":1}\n");
  config_.checkpoint.folder = root();
  config_.checkpoint.resume = "auto";
  Run({1, 2});
  EXPECT_EQ(ReadFile(folder_ / "run.jsonl.1"), "{\"step\":1}\n");
  EXPECT_THAT(ReadFile(folder_ / "run.jsonl"), HasSubstr("{\"step\":8,"));
}

// As under `weft launch`, if rank 0 of the last attempt does not end at once.
TEST_F(ResumeTest, WaitsForARankThatStillHasTheCheckpoints) {
  config_.checkpoint.folder = root();
  config_.checkpoint.resume = "auto";
  fs::create_directory(root());
  const int lock = open(root().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(flock(lock, LOCK_EX | LOCK_NB), 0);
  TrainEnvironment environment;
  const auto train = [&] {
    return RunThreadRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) {
      return Train(bootstrap, config_, environment).status();
    });
  };
  const auto refused =
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("another run writes to the folder"));
  EXPECT_THAT(train(), refused);
  environment.lock_wait = absl::Milliseconds(1);
  EXPECT_THAT(train(), refused);
  environment.lock_wait = absl::Minutes(1);
  const std::atomic<bool> stop = true;
  environment.stop = &stop;
  EXPECT_THAT(train(), StatusIs(absl::StatusCode::kCancelled, HasSubstr("stopped by a signal while")));
  environment.stop = nullptr;
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  std::thread reader([&] {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> text(fdopen(ends[0], "r"), std::fclose);
    bool is_locked = true;
    for (std::array<char, 1000> line; std::fgets(line.data(), line.size(), text.get()) != nullptr;) {
      if (!is_locked || std::string_view(line.data()).find("waiting  for a rank") != 0) continue;
      close(lock);
      is_locked = false;
    }
    if (is_locked) close(lock);
  });
  environment.output = fdopen(ends[1], "w");
  EXPECT_OK(train());
  std::fclose(environment.output);
  reader.join();
}

// Files cannot grow from the end of step `first` until the end of step `last`, before their metrics are
// written. As on a full disk that has no room for a line of metrics, but another one for checkpoints.
class FullDisk {
 public:
  FullDisk(int64_t first, int64_t last) : first_(first), last_(last) {
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, old_handler_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

  // The error of a run on two ranks.
  absl::Status Run(const TrainConfig& config) const {
    return RunThreadRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) {
      TrainEnvironment environment;
      if (bootstrap.rank() == 0) {
        environment.on_step = [this](const StepMetrics& metrics) {
          const rlimit low = {1, before_.rlim_max};
          setrlimit(RLIMIT_FSIZE, metrics.step >= first_ && metrics.step < last_ ? &low : &before_);
        };
      }
      return Train(bootstrap, config, environment).status();
    });
  }

 private:
  const int64_t first_;
  const int64_t last_;
  rlimit before_{};
  const sighandler_t old_handler_ = std::signal(SIGXFSZ, SIG_IGN);
};

TEST_F(ResumeTest, SavesWhatARunHasDoneWhoseMetricsCannotBeWritten) {
  config_.output.metrics_file = folder_ / "run.jsonl";
  config_.checkpoint.folder = root();
  const absl::Status status = FullDisk(2, 3).Run(config_);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr(absl::StrCat("--metrics: cannot write '", config_.output.metrics_file, "'")),
                    HasSubstr("steps from 2 on are missing there")));
  const std::string lines = ReadFile(config_.output.metrics_file);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 1) << lines;
  ASSERT_OK_AND_ASSIGN(const auto saved, ListCheckpoints(root()));
  EXPECT_THAT(saved, ElementsAre(CheckpointName(3)));
}

// Only rank 0 knows of the metrics when all ranks learn of the trace.
TEST_F(ResumeTest, SavesWhatARunHasDoneWhoseMetricsAndTraceCannotBeWritten) {
  config_.output.metrics_file = folder_ / "run.jsonl";
  config_.output.trace_file = folder_ / "trace.json";
  config_.output.trace_steps = "2:2";
  config_.checkpoint.folder = root();
  EXPECT_THAT(FullDisk(1, 2).Run(config_).message(), HasSubstr("trace.json"));
  ASSERT_OK_AND_ASSIGN(const auto saved, ListCheckpoints(root()));
  EXPECT_THAT(saved, ElementsAre(CheckpointName(2)));
}

TEST_F(ResumeTest, SavesWhatARunHasDoneWhoseTraceCannotBeWritten) {
  const std::string folder = folder_ / "traces";
  fs::create_directory(folder);
  config_.output.trace_file = folder + "/trace.json";
  config_.output.trace_steps = "2:2";
  config_.optimizer.steps = 9;
  config_.checkpoint.folder = root();
  const absl::Status status = RunThreadRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) {
    TrainEnvironment environment;
    if (bootstrap.rank() == 0) environment.on_step = [&](const StepMetrics&) { fs::remove_all(folder); };
    return Train(bootstrap, config_, environment).status();
  });
  EXPECT_THAT(status.message(), HasSubstr("--trace: cannot write '" + folder + "/trace.json'"));
  ASSERT_OK_AND_ASSIGN(const auto saved, ListCheckpoints(root()));
  EXPECT_THAT(saved, ElementsAre(CheckpointName(3)));
}

}  // namespace
}  // namespace weft
