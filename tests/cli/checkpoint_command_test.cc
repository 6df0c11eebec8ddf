// `weft checkpoint`: its arguments, its output, and the folders that it writes.
#include "src/cli/commands/checkpoint_command.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_folder.h"
#include "weft/mesh/thread_bootstrap.h"
#include "weft/train/checkpoint.h"
#include "weft/train/safetensors.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::StatusIs;

class CheckpointCommandTest : public ::testing::Test {
 protected:
  // Saves the checkpoints of these steps: one array of four elements, and a moment of it. Indexers have the
  // same.
  void Save(const std::vector<int64_t>& steps) {
    Parameter parameter;
    parameter.name = "weight";
    parameter.shape = {4};
    std::vector<float> values = {1, 2, 3, 4};
    const std::vector<ShardView> shards = {{&parameter, {0, 0, 0, 1, 4, 0}, values.data(), nullptr}};
    ASSERT_OK(RunThreadRanks(NodeMap::OneNode(1), [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const auto saver, CheckpointSaver::Open(bootstrap, root(), {}));
      for (const int64_t step : steps) {
        CheckpointState state;
        state.step = step;
        state.arrays = {{"model", "", shards},
                        {"optimizer", ".exp_avg", shards},
                        {"indexer", "", shards},
                        {"indexer_optimizer", ".exp_avg", shards}};
        state.files = {{"config.json", "{}"}, {"tokenizer.json", "[]"}, {"indexer_config.json", "{}"}};
        WEFT_RETURN_IF_ERROR(saver->Start(std::move(state)));
        WEFT_RETURN_IF_ERROR(saver->Finish());
      }
      return absl::OkStatus();
    }));
  }

  absl::Status Run(const std::vector<std::string>& arguments) {
    WEFT_ASSIGN_OR_RETURN(const CheckpointCommand command, ParseCheckpointCommand(arguments));
    char* text = nullptr;
    size_t bytes = 0;
    std::FILE* output = open_memstream(&text, &bytes);
    absl::Status status = RunCheckpointCommand(command, output);
    std::fclose(output);
    const std::unique_ptr<char, decltype(&std::free)> owner(text, &std::free);
    printed_ = std::string(text, bytes);
    return status;
  }

  // Runs a command, and calls `then` as soon as it prints something.
  absl::Status RunUntilItPrints(const std::vector<std::string>& arguments, std::function<void()> then) {
    WEFT_ASSIGN_OR_RETURN(const CheckpointCommand command, ParseCheckpointCommand(arguments));
    printed_.clear();
    first_write_ = std::move(then);
    const auto write = [](void* self, const char* text, size_t bytes) {
      auto& test = *static_cast<CheckpointCommandTest*>(self);
      test.printed_.append(text, bytes);
      if (test.first_write_) std::exchange(test.first_write_, nullptr)();
      return static_cast<ssize_t>(bytes);
    };
    std::FILE* output = fopencookie(this, "w", {nullptr, write, nullptr, nullptr});
    std::setvbuf(output, nullptr, _IONBF, 0);
    absl::Status status = RunCheckpointCommand(command, output);
    std::fclose(output);
    return status;
  }

  std::string root() const { return folder_ / "checkpoints"; }
  TempFolder folder_;
  std::string printed_;
  std::function<void()> first_write_;
};

TEST_F(CheckpointCommandTest, ListsTheNewestFirst) {
  Save({1, 20});
  ASSERT_OK(Run({"ls", root()}));
  EXPECT_LT(printed_.find("step-00000020"), printed_.find("step-00000001"));
}

TEST_F(CheckpointCommandTest, ListsAllAlsoIfOneIsDamaged) {
  Save({1, 20});
  fs::remove(root() + "/step-00000020/model.safetensors");
  EXPECT_THAT(Run({"ls", root()}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("1 of 2 checkpoints cannot be used")));
  EXPECT_THAT(printed_, AllOf(HasSubstr("model.safetensors"), HasSubstr("complete")));
}

TEST_F(CheckpointCommandTest, VerifiesFoldersAndSingleCheckpoints) {
  Save({1, 2});
  ASSERT_OK(Run({"verify", root()}));
  EXPECT_THAT(printed_, AllOf(HasSubstr("step-00000001: ok"), HasSubstr("step-00000002: ok")));
  const std::string path = root() + "/step-00000002/optimizer.safetensors";
  std::string content = ReadFile(path);
  content.back() = static_cast<char>(content.back() ^ 1);
  folder_.Write("checkpoints/step-00000002/optimizer.safetensors", content);
  EXPECT_THAT(Run({"verify", root()}), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("1 of 2")));
  EXPECT_THAT(printed_, HasSubstr("optimizer.safetensors"));
  EXPECT_OK(Run({"verify", root() + "/step-00000001"}));
}

TEST_F(CheckpointCommandTest, NamesTheStepOfACheckpointInAFolderOfAnotherStep) {
  Save({1, 20});
  fs::copy(root() + "/step-00000020", root() + "/step-00000002");
  for (const char* word : {"ls", "verify"}) {
    EXPECT_THAT(Run({word, root()}),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("1 of 3 checkpoints cannot be used")));
    EXPECT_THAT(printed_, HasSubstr("step-00000002' holds step 20: rename it to step-00000020"));
  }
  EXPECT_THAT(Run({"verify", root() + "/step-00000002/"}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("1 of 1")));
}

// A live run removes its oldest checkpoints.
TEST_F(CheckpointCommandTest, CallsACheckpointThatIsRemovedMeanwhileNotDamaged) {
  for (const char* word : {"ls", "verify"}) {
    Save({1, 20});
    const std::string oldest = root() + "/step-00000001";
    EXPECT_OK(RunUntilItPrints({word, root()}, [&] { fs::remove_all(oldest); }));
    EXPECT_THAT(printed_, ContainsRegex("step-00000001[^\n]*removed meanwhile"));
    EXPECT_THAT(printed_, ContainsRegex("step-00000020[^\n]*(complete|ok)"));
    fs::remove_all(root());
  }
}

TEST_F(CheckpointCommandTest, ExportsWeightsConfigurationAndTokenizer) {
  Save({1});
  ASSERT_OK(Run({"export-hf", root() + "/step-00000001", folder_ / "out"}));
  EXPECT_TRUE(fs::exists(folder_ / "out/config.json"));
  EXPECT_TRUE(fs::exists(folder_ / "out/tokenizer.json"));
  EXPECT_FALSE(fs::exists(folder_ / "out/optimizer.safetensors"));
  EXPECT_TRUE(fs::exists(folder_ / "out/indexer.safetensors"));
  EXPECT_TRUE(fs::exists(folder_ / "out/indexer_config.json"));
  EXPECT_FALSE(fs::exists(folder_ / "out/indexer_optimizer.safetensors"));
  EXPECT_FALSE(fs::exists(folder_ / "out/checkpoint.json"));
  ASSERT_OK_AND_ASSIGN(const SafetensorsReader reader, SafetensorsReader::Open(folder_ / "out"));
  std::vector<float> values(4);
  ASSERT_OK(reader.Check("weight", {4}));
  ASSERT_OK(reader.Read("weight", 0, absl::MakeSpan(values)));
  EXPECT_EQ(values, (std::vector<float>{1, 2, 3, 4}));
}

TEST_F(CheckpointCommandTest, ExportsNothingFromADamagedCheckpoint) {
  Save({1});
  const std::string path = root() + "/step-00000001/model.safetensors";
  std::string content = ReadFile(path);
  content.back() = static_cast<char>(content.back() ^ 1);
  folder_.Write("checkpoints/step-00000001/model.safetensors", content);
  EXPECT_THAT(Run({"export-hf", root() + "/step-00000001", folder_ / "out"}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("model.safetensors")));
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

TEST_F(CheckpointCommandTest, DoesNotExportIntoTheCheckpoint) {
  Save({1});
  const std::string path = root() + "/step-00000001";
  EXPECT_THAT(Run({"export-hf", path, path + "/."}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the checkpoint itself")));
  EXPECT_OK(Run({"verify", path}));
}

TEST_F(CheckpointCommandTest, DoesNotExportAmongCheckpoints) {
  Save({1});
  for (const std::string& folder : {root(), root() + "/step-00000002"}) {
    EXPECT_THAT(Run({"export-hf", root() + "/step-00000001", folder}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("name another folder")));
  }
  EXPECT_FALSE(fs::exists(root() + "/model.safetensors"));
  EXPECT_FALSE(fs::exists(root() + "/step-00000002"));
}

TEST_F(CheckpointCommandTest, NamesWhatIsMissing) {
  EXPECT_THAT(Run({"ls", folder_ / "none"}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none': No such file or directory")));
  EXPECT_THAT(Run({"ls", folder_.str()}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("has no checkpoints")));
  EXPECT_THAT(Run({"verify", folder_ / "none"}), Not(testing::IsOk()));
  EXPECT_THAT(printed_, HasSubstr("is not a checkpoint: there is no such folder"));
  EXPECT_THAT(Run({"verify", folder_.str()}), Not(testing::IsOk()));
  EXPECT_THAT(printed_, HasSubstr("is not a checkpoint: it has no checkpoint.json"));
  EXPECT_THAT(Run({}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ls, verify and export-hf")));
  EXPECT_THAT(Run({"verifi"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("did you mean verify")));
  EXPECT_THAT(Run({"ls"}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("one folder")));
  EXPECT_THAT(Run({"verify"}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("needs a checkpoint")));
  EXPECT_THAT(Run({"export-hf", "a"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a folder to write")));
  EXPECT_THAT(Run({"ls", "--all", "x"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("unknown flag --all")));
  EXPECT_THAT(Run({"verify", "-x"}), StatusIs(absl::StatusCode::kInvalidArgument,
                                              HasSubstr("unknown flag -x: see weft checkpoint --help")));
}

}  // namespace
}  // namespace weft
