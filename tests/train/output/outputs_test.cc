#include "src/train/output/outputs.h"

#include <unistd.h>

#include <array>
#include <filesystem>
#include <string>
#include <sys/inotify.h>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/train/output/resolved_config.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_folder.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::weft::testing::StatusIs;

class Outputs : public ::testing::Test {
 protected:
  Outputs() { config_.data.paths = {folder_.Write("text.txt", std::string(100, 'x'))}; }

  absl::Status Check() const {
    const auto inputs = OpenInputs(config_);
    EXPECT_OK(inputs);
    return CheckOutputs(config_, *inputs);
  }
  void ExpectCollision(const std::string& words) const {
    EXPECT_THAT(Check(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(words)));
  }

  TempFolder folder_;
  TrainConfig config_;
};

TEST_F(Outputs, MayBeNewFilesBesideTheInputs) {
  config_.output.metrics_file = folder_ / "m.jsonl";
  config_.output.export_folder = folder_.str();
  EXPECT_OK(Check());
  EXPECT_EQ(folder_.FileCount(), 1);
}

TEST_F(Outputs, MayReplaceFilesThatTheRunDoesNotRead) {
  config_.output.export_folder = folder_ / "out";
  folder_.Write("out/config.json", "old");
  config_.output.trace_file = folder_.Write("t.json", "old");
  EXPECT_OK(Check());
}

TEST_F(Outputs, MayReplaceTheConfigurationOfAnEarlierRun) {
  config_.output.metrics_file = folder_ / "m.jsonl";
  config_.given_flags = "# Flags.\nsteps = 3\n";
  folder_.Write("m.config.json", ToJson({{"model", "large", "--model"}, {"steps", "9", ""}}));
  folder_.Write("m.config.toml", "# Flags.\nsteps = 9\n");
  EXPECT_OK(Check());
  for (const char* name : {"m.config.json", "m.config.toml"}) folder_.Write(name, "");
  EXPECT_OK(Check());
}

TEST_F(Outputs, MustNotReplaceAFileBesideTheMetricsThatNoRunHasWritten) {
  config_.output.metrics_file = folder_ / "m.jsonl";
  config_.given_flags = "# Flags.\nsteps = 3\n";
  for (const char* name : {"m.config.json", "m.config.toml"}) {
    for (const char* text : {"x", "{}\n", "# My own flags.\nsteps = 9\n", "{\n  \"models\": {}}\n"}) {
      const std::string path = folder_.Write(name, text);
      ExpectCollision(absl::StrCat("--metrics ", config_.output.metrics_file,
                                   ": the run would save its configuration in '", path, "', which is"));
      EXPECT_EQ(ReadFile(path), text);
      fs::remove(path);
    }
  }
  EXPECT_OK(Check());
}

TEST_F(Outputs, MustNotBeADataFileWhateverPathLeadsToIt) {
  fs::create_symlink(folder_ / "text.txt", folder_ / "link.txt");
  fs::create_hard_link(folder_ / "text.txt", folder_ / "hard.txt");
  fs::create_symlink(folder_.str(), folder_ / "folder");
  for (const char* path :
       {"text.txt", "./text.txt", "folder/./text.txt", "folder/text.txt", "link.txt", "hard.txt"}) {
    SCOPED_TRACE(path);
    config_.output.metrics_file = folder_ / path;
    ExpectCollision("is a file that --data reads");
  }
}

TEST_F(Outputs, MustNotBeAFileOfADataFolder) {
  config_.data.paths = {folder_.str()};
  config_.output.metrics_file = folder_ / "text.txt";
  ExpectCollision("text.txt: is a file that --data reads; name another one");
}

TEST_F(Outputs, MustNotLieInADataFolder) {
  folder_.Write("data/text.txt", std::string(100, 'x'));
  folder_.Write("eval/text.txt", std::string(100, 'x'));
  config_.data.paths = {folder_ / "data"};
  config_.eval.paths = {folder_ / "./eval/"};
  EXPECT_OK(Check());
  config_.checkpoint.folder = folder_ / "data/run";
  ExpectCollision("--checkpoint-dir " + folder_.str() + "/data/run: lies in the folder " + folder_.str() +
                  "/data, of which --data reads all files; name another one");
  config_.checkpoint.folder = folder_ / "data";
  ExpectCollision("of which --data reads all files");
  config_.checkpoint.folder = folder_ / "data2";
  config_.output.metrics_file = folder_ / "eval/m.jsonl";
  ExpectCollision("of which --eval-data reads all files");
  folder_.Write("data/.runs/text.txt", "");
  config_.output.metrics_file = folder_ / "data/.runs/m.jsonl";  // Hidden ones are no data.
  EXPECT_OK(Check());
}

TEST_F(Outputs, MustNotBeAFolderInADataFolder) {
  config_.data.paths = {folder_.str()};
  for (const char* name : {"dumps", "weft-dumps", "new/dumps"}) {
    config_.output.dump_folder = folder_ / name;
    ExpectCollision(absl::StrCat("--dump-folder ", config_.output.dump_folder, ": lies in the folder ",
                                 folder_.str(), ", of which --data reads all files"));
  }
  for (const char* name : {kDefaultDumpFolder, ".dumps"}) {
    config_.output.dump_folder = folder_ / name;
    EXPECT_OK(Check());
  }
  config_.output.tensorboard_folder = folder_ / "events";
  ExpectCollision(absl::StrCat("--tensorboard ", folder_.str(), "/events: lies in the folder"));
}

TEST_F(Outputs, MustNotBeEvaluationDataOrTheConfigurationFile) {
  config_.eval.paths = {folder_.Write("eval.txt", std::string(100, 'x'))};
  config_.config_file = folder_.Write("run.toml", "");
  config_.output.metrics_file = folder_ / "eval.txt";
  ExpectCollision("is a file that --eval-data reads");
  config_.output.metrics_file = folder_ / "run.toml";
  ExpectCollision("is a file that --config reads");
}

TEST_F(Outputs, MustNotBeTheMaskOfDataThatTheRunReads) {
  config_.data.loss_mask = true;
  config_.eval.paths = {folder_.Write("eval.txt", std::string(100, 'x'))};
  for (const char* name : {"text.txt.mask", "eval.txt.mask"}) folder_.Write(name, std::string(100, '\1'));
  config_.output.trace_file = folder_ / "text.txt.mask";
  ExpectCollision("--trace " + folder_.str() + "/text.txt.mask: is a file that --data reads");
  config_.output.trace_file = folder_ / "eval.txt.mask";
  ExpectCollision("eval.txt.mask: is a file that --eval-data reads");
}

TEST_F(Outputs, MustDifferFromEachOther) {
  config_.output.export_folder = folder_ / "out";
  config_.output.metrics_file = folder_ / "out/config.json";
  ExpectCollision("is a file that --metrics writes");
}

TEST_F(Outputs, MustNotGoIntoTheFolderOfCheckpoints) {
  config_.output.export_folder = folder_ / "out/";
  config_.checkpoint.folder = folder_ / "out";
  EXPECT_THAT(Check(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--checkpoint-dir")));
}

TEST_F(Outputs, HaveAFolderForDumps) {
  for (const char* path : {"", "new", "new/er"}) {
    config_.output.dump_folder = folder_ / path;
    EXPECT_OK(Check());
  }
  config_.output.dump_folder = folder_ / "text.txt";
  ExpectCollision("text.txt: is not a folder: name a folder");
  config_.output.dump_folder = folder_ / "text.txt/dumps";
  ExpectCollision("text.txt/dumps: lies below a file: name a folder");
}

TEST_F(Outputs, AreNamedWithTheirFlagsIfTheyCannotBeWritten) {
  const std::string path = folder_ / "none/file.json";
  for (const auto& [flag, file] : {std::pair("--trace", &config_.output.trace_file),
                                   std::pair("--metrics", &config_.output.metrics_file)}) {
    *file = path;
    EXPECT_THAT(Check(), StatusIs(absl::StatusCode::kNotFound, absl::StrCat(flag, ": cannot write '", path,
                                                                            "': No such file or directory")));
    file->clear();
  }
}

// The names of the files that have been created in a folder since the construction.
class CreatedFiles {
 public:
  explicit CreatedFiles(const std::string& folder) { inotify_add_watch(fd_, folder.c_str(), IN_CREATE); }
  CreatedFiles(const CreatedFiles&) = delete;
  CreatedFiles& operator=(const CreatedFiles&) = delete;
  ~CreatedFiles() { close(fd_); }
  std::vector<std::string> Names() {
    alignas(inotify_event) std::array<char, 4096> events{};
    std::vector<std::string> names;
    const ssize_t bytes = read(fd_, events.data(), events.size());
    for (ssize_t at = 0; at < bytes;) {
      const auto* event = reinterpret_cast<const inotify_event*>(events.data() + at);
      names.emplace_back(event->name);
      at += static_cast<ssize_t>(sizeof(*event) + event->len);
    }
    return names;
  }

 private:
  const int fd_ = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
};

// Another run may open its metrics at any time, also between a creation and a removal.
TEST_F(Outputs, AreProbedUnderOtherNames) {
  CreatedFiles created(folder_.str());
  config_.output.metrics_file = folder_ / "m.jsonl";
  config_.output.trace_file = folder_ / "trace.json";
  EXPECT_OK(Check());
  EXPECT_THAT(created.Names(), AllOf(Not(IsEmpty()), Each(HasSubstr(".partial-"))));
}

TEST_F(Outputs, MustNotContinueTheMetricsOfAnEarlierRun) {
  config_.output.metrics_file = folder_.Write("m.jsonl", "old");
  ExpectCollision("has 3 bytes of an earlier run");
}

TEST_F(Outputs, HaveNoConfigurationBesideADevice) {
  for (const char* device : {"/dev/null", "/dev/stdout"}) {
    config_.output.metrics_file = device;
    EXPECT_OK(Check());
    EXPECT_EQ(ConfigPathBeside(device), std::nullopt);
  }
}

TEST_F(Outputs, HaveAConfigurationNamedAfterTheMetrics) {
  EXPECT_EQ(ConfigPathBeside("a/run.jsonl"), "a/run.config.json");
  EXPECT_EQ(ConfigPathBeside("a.b/run.json"), "a.b/run.config.json");
  EXPECT_EQ(ConfigPathBeside("a.b/run"), "a.b/run.config.json");
  // Runs that differ after a point have files of their own.
  EXPECT_EQ(ConfigPathBeside("lr0.1"), "lr0.1.config.json");
  EXPECT_EQ(ConfigPathBeside("lr0.01"), "lr0.01.config.json");
  EXPECT_EQ(FlagsPathBeside("lr0.1"), "lr0.1.config.toml");
  EXPECT_EQ(FlagsPathBeside("lr0.1.jsonl"), "lr0.1.config.toml");
}

TEST_F(Outputs, MustNotRemoveShardsThatTheRunReads) {
  config_.output.export_folder = folder_ / "out";
  config_.data.paths = {folder_.Write("out/model-00001-of-00002.safetensors", std::string(100, 'x'))};
  ExpectCollision("is a file that --data reads");
}

TEST_F(Outputs, MustNotReplaceInputsButMayReplaceLinksToThem) {
  config_.output.export_folder = folder_ / "out";
  config_.data.paths = {folder_.Write("out/config.json", std::string(100, 'x'))};
  ExpectCollision("out/config.json: is a file that --data reads");
  // The export replaces the link. The data stay as they are.
  fs::rename(folder_ / "out/config.json", folder_ / "data.txt");
  fs::create_symlink(folder_ / "data.txt", folder_ / "out/config.json");
  config_.data.paths = {folder_ / "data.txt"};
  EXPECT_OK(Check());
  // The data path is a link to a file that the export replaces.
  fs::remove(folder_ / "out/config.json");
  fs::rename(folder_ / "data.txt", folder_ / "out/config.json");
  fs::create_symlink(folder_ / "out/config.json", folder_ / "data.txt");
  ExpectCollision("out/config.json: is a file that --data reads");
}

}  // namespace
}  // namespace weft
