// Saving and loading of checkpoints over ranks that are threads: partitions of any kind, commit, removal,
// damage.
#include "weft/train/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/train/checkpoint/checkpoint_folder.h"
#include "src/train/checkpoint/file_range.h"
#include "src/train/checkpoint/snapshot_writer.h"
#include "src/train/files/file_io.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_folder.h"
#include "weft/mesh/thread_bootstrap.h"
#include "weft/nn/parameter.h"
#include "weft/train/safetensors.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

using ::testing::_;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::StatusIs;

constexpr int64_t kRows = 12;
constexpr int64_t kColumns = 10;

// Partition of a matrix of kRows x kColumns over ranks.
enum class Cut { kByRows, kByColumns, kOneRank };

// A rank's part of two arrays, whose values encode array and element.
class State {
 public:
  State(Cut cut, int rank, int ranks) {
    matrix_->name = "matrix";
    matrix_->shape = {kRows, kColumns};
    vector_->name = "vector";
    vector_->shape = {7};
    if (cut == Cut::kByColumns) {
      const int64_t width = (kColumns + ranks - 1) / ranks;
      const int64_t first = std::min(kColumns, width * rank);
      const int64_t count = std::min(kColumns, first + width) - first;
      if (count > 0) Add(*matrix_, {0, 0, first, kRows, count, kColumns});
    } else {
      const int64_t elements = kRows * kColumns;
      const int64_t first = cut == Cut::kOneRank ? (rank == 0 ? 0 : elements) : elements * rank / ranks;
      const int64_t end = cut == Cut::kOneRank ? elements : elements * (rank + 1) / ranks;
      if (first < end) Add(*matrix_, {0, 0, first, 1, end - first, 0});
    }
    if (rank == ranks - 1) Add(*vector_, {1, 0, 0, 1, 7, 0});
  }

  static float Value(const std::string& name, int64_t element) {
    return static_cast<float>(element + (name == "matrix" ? 1000 : 5000));
  }
  void Fill() {
    ForEach([](const std::string& name, int64_t element, float& value) { value = Value(name, element); });
  }
  void Fill(float constant) {
    ForEach([&](const std::string&, int64_t, float& value) { value = constant; });
  }
  int WrongValues() {
    int wrong = 0;
    ForEach([&](const std::string& name, int64_t element, float& value) {
      wrong += value != Value(name, element);
    });
    return wrong;
  }

  std::vector<ShardView> Shards() {
    std::vector<ShardView> shards;
    for (Part& part : parts_) shards.push_back({part.parameter, part.piece, part.values.data(), nullptr});
    return shards;
  }
  CheckpointState ToSave(int64_t step) {
    CheckpointState state;
    state.step = step;
    state.arrays = {{"model", "", Shards()}};
    state.counts = {{"count", 3}};
    state.properties = {{"name", "value"}};
    state.files = {{"config.json", "{}\n"}};
    for (const Part& part : parts_) state.counts_of_parameters[part.parameter->name] = 2;
    return state;
  }

 private:
  struct Part {
    const Parameter* parameter;
    ShardPiece piece;
    std::vector<float> values;
  };
  void Add(const Parameter& parameter, const ShardPiece& piece) {
    parts_.push_back({&parameter, piece, std::vector<float>(static_cast<size_t>(piece.elements()))});
  }
  void ForEach(const std::function<void(const std::string&, int64_t, float&)>& visit) {
    for (Part& part : parts_) {
      for (int64_t i = 0; i < part.piece.elements(); ++i) {
        const int64_t element =
            part.piece.start + i / part.piece.run_length * part.piece.run_stride + i % part.piece.run_length;
        visit(part.parameter->name, element, part.values[static_cast<size_t>(i)]);
      }
    }
  }

  std::shared_ptr<Parameter> matrix_ = std::make_shared<Parameter>();
  std::shared_ptr<Parameter> vector_ = std::make_shared<Parameter>();
  std::vector<Part> parts_;
};

class CheckpointTest : public ::testing::Test {
 protected:
  std::string root() const { return folder_ / "checkpoints"; }
  std::string Path(int64_t step) const { return absl::StrCat(root(), "/", CheckpointName(step)); }

  absl::Status OnRanks(int ranks, const std::function<absl::Status(Bootstrap&)>& body) {
    return RunThreadRanks(NodeMap::OneNode(ranks), body);
  }
  // Saves checkpoints of these steps, one after the other.
  absl::Status Save(Cut cut, int ranks, const std::vector<int64_t>& steps = {1}) {
    return OnRanks(ranks, [&](Bootstrap& bootstrap) -> absl::Status {
      State state(cut, bootstrap.rank(), bootstrap.size());
      state.Fill();
      WEFT_ASSIGN_OR_RETURN(const auto saver, CheckpointSaver::Open(bootstrap, root(), options_));
      for (const int64_t step : steps) {
        WEFT_RETURN_IF_ERROR(saver->Start(state.ToSave(step)));
        WEFT_RETURN_IF_ERROR(saver->Finish());
      }
      return absl::OkStatus();
    });
  }
  absl::Status Load(Cut cut, int ranks, int64_t step = 1) {
    return OnRanks(ranks, [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(Path(step)));
      State state(cut, bootstrap.rank(), bootstrap.size());
      state.Fill(-1);
      WEFT_RETURN_IF_ERROR(FillShards(state.Shards(), checkpoint.Loader("model")));
      return state.WrongValues() == 0 ? absl::OkStatus() : absl::InternalError("wrong values");
    });
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(root())) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

  TempFolder folder_;
  CheckpointOptions options_;
};

TEST_F(CheckpointTest, LoadsOntoEveryPartition) {
  struct Partition {
    Cut cut;
    int ranks;
  };
  const Partition partitions[] = {{Cut::kByRows, 1},    {Cut::kByRows, 3},    {Cut::kByRows, 4},
                                  {Cut::kByColumns, 2}, {Cut::kByColumns, 3}, {Cut::kOneRank, 2}};
  for (const Partition& saved : partitions) {
    fs::remove_all(root());
    ASSERT_OK(Save(saved.cut, saved.ranks));
    for (const Partition& loaded : partitions) EXPECT_OK(Load(loaded.cut, loaded.ranks));
  }
}

TEST_F(CheckpointTest, HasTheSameFilesFromEveryPartition) {
  ASSERT_OK(Save(Cut::kByRows, 1));
  const std::string one = ReadFile(Path(1) + "/model.safetensors");
  for (const Cut cut : {Cut::kByRows, Cut::kByColumns, Cut::kOneRank}) {
    fs::remove_all(root());
    ASSERT_OK(Save(cut, 3));
    ASSERT_OK_AND_ASSIGN(const SafetensorsReader reader, SafetensorsReader::Open(Path(1)));
    std::vector<float> values(kRows * kColumns);
    ASSERT_OK(reader.Check("matrix", {kRows, kColumns}));
    ASSERT_OK(reader.Read("matrix", 0, absl::MakeSpan(values)));
    for (int64_t i = 0; i < kRows * kColumns; ++i)
      EXPECT_EQ(values[static_cast<size_t>(i)], State::Value("matrix", i));
  }
  EXPECT_EQ(one.size(), fs::file_size(Path(1) + "/model.safetensors"));
}

TEST_F(CheckpointTest, KeepsStepCountsPropertiesAndFiles) {
  ASSERT_OK(Save(Cut::kByRows, 2, {17}));
  ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(Path(17)));
  EXPECT_EQ(checkpoint.step(), 17);
  EXPECT_EQ(checkpoint.counts().at("count"), 3);
  EXPECT_EQ(checkpoint.properties().at("name"), "value");
  EXPECT_EQ(checkpoint.counts_of_parameters().at("vector"), 2);
  EXPECT_EQ(ReadFile(Path(17) + "/config.json"), "{}\n");
  EXPECT_EQ(ReadFile(root() + "/latest"), "step-00000017\n");
}

TEST_F(CheckpointTest, SplitsFilesAtTheirLimit) {
  options_.max_file_bytes = 100;
  ASSERT_OK(Save(Cut::kByRows, 3));
  EXPECT_TRUE(fs::exists(Path(1) + "/model-00002-of-00002.safetensors"));
  EXPECT_TRUE(fs::exists(Path(1) + "/model.safetensors.index.json"));
  EXPECT_OK(Load(Cut::kByColumns, 2));
}

TEST_F(CheckpointTest, KeepsTheNewestCheckpoints) {
  options_.keep = 2;
  ASSERT_OK(Save(Cut::kByRows, 2, {10, 20, 30}));
  EXPECT_THAT(Names(), ElementsAre("latest", "step-00000020", "step-00000030"));
  options_.keep = 0;
  ASSERT_OK(Save(Cut::kByRows, 2, {40, 50}));
  EXPECT_THAT(Names(),
              ElementsAre("latest", "step-00000020", "step-00000030", "step-00000040", "step-00000050"));
}

TEST_F(CheckpointTest, ReplacesACheckpointOfTheSameStep) {
  ASSERT_OK(Save(Cut::kByRows, 2, {5, 6, 5}));
  EXPECT_THAT(Names(), ElementsAre("latest", "step-00000005", "step-00000006"));
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, ListCheckpoints(root()));
  EXPECT_THAT(names, ElementsAre("step-00000005", "step-00000006"));
  EXPECT_OK(Load(Cut::kByRows, 3, 5));
}

TEST_F(CheckpointTest, NeverRemovesTheLatestOfAnEarlierStep) {
  options_.keep = 1;
  ASSERT_OK(Save(Cut::kByRows, 2, {9, 4}));
  EXPECT_THAT(Names(), ElementsAre("latest", "step-00000004"));
}

TEST_F(CheckpointTest, RemovesTheRemainsOfKilledSaves) {
  folder_.Write("checkpoints/.saving-step-00000003-ab/model.safetensors", "x");
  folder_.Write("checkpoints/.removing-step-00000002-ab/model.safetensors", "x");
  ASSERT_OK(OnRanks(2, [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto saver, CheckpointSaver::Open(bootstrap, root(), options_));
    EXPECT_EQ(saver->removed().size(), bootstrap.rank() == 0 ? 2 : 0);
    return absl::OkStatus();
  }));
  EXPECT_TRUE(Names().empty());
}

TEST_F(CheckpointTest, RefusesAFolderThatAnotherRunHas) {
  EXPECT_OK(OnRanks(1, [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto saver, CheckpointSaver::Open(bootstrap, root(), options_));
    EXPECT_THAT(CheckpointSaver::Open(bootstrap, root(), options_).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("another run")));
    return absl::OkStatus();
  }));
}

TEST_F(CheckpointTest, EndsASaveWithoutACommitAndLeavesNothing) {
  ASSERT_OK(OnRanks(2, [&](Bootstrap& bootstrap) -> absl::Status {
    State state(Cut::kByRows, bootstrap.rank(), bootstrap.size());
    WEFT_ASSIGN_OR_RETURN(const auto saver, CheckpointSaver::Open(bootstrap, root(), options_));
    return saver->Start(state.ToSave(1));
  }));
  EXPECT_FALSE(fs::exists(Path(1)));
  EXPECT_FALSE(fs::exists(root()));
}

TEST_F(CheckpointTest, NamesElementsThatNoRankOrTwoRanksHave) {
  // Each rank has part 0 of `parts`.
  const auto save = [&](int ranks, int parts) {
    return OnRanks(ranks, [&](Bootstrap& bootstrap) -> absl::Status {
      State state(Cut::kByRows, 0, parts);
      WEFT_ASSIGN_OR_RETURN(const auto saver, CheckpointSaver::Open(bootstrap, root(), options_));
      WEFT_RETURN_IF_ERROR(saver->Start(state.ToSave(1)));
      return saver->Finish();
    });
  };
  EXPECT_THAT(save(2, 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("set `replica` and `replicas`")));
  EXPECT_THAT(save(1, 3),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("pass the shards of all ranks")));
  EXPECT_FALSE(fs::exists(Path(1)));
}

TEST_F(CheckpointTest, SharesTheWritingAmongReplicas) {
  ASSERT_OK(OnRanks(4, [&](Bootstrap& bootstrap) -> absl::Status {
    CheckpointOptions options = options_;
    options.replica = bootstrap.rank() / 2;
    options.replicas = 2;
    State state(Cut::kByColumns, bootstrap.rank() % 2, 2);
    state.Fill();
    WEFT_ASSIGN_OR_RETURN(const auto saver, CheckpointSaver::Open(bootstrap, root(), options));
    WEFT_RETURN_IF_ERROR(saver->Start(state.ToSave(1)));
    return saver->Finish();
  }));
  EXPECT_OK(Load(Cut::kByRows, 3));
}

TEST_F(CheckpointTest, NamesRanksThatSaveDifferentSteps) {
  EXPECT_THAT(OnRanks(2,
                      [&](Bootstrap& bootstrap) -> absl::Status {
                        State state(Cut::kByRows, bootstrap.rank(), 2);
                        WEFT_ASSIGN_OR_RETURN(const auto saver,
                                              CheckpointSaver::Open(bootstrap, root(), options_));
                        return saver->Start(state.ToSave(bootstrap.rank()));
                      }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("saves step")));
}

TEST_F(CheckpointTest, WritesTheValuesOfTheStartWhileShardsChange) {
  for (const int64_t snapshot_bytes : {int64_t{0}, int64_t{100}, int64_t{1} << 20}) {
    fs::remove_all(root());
    options_.snapshot_bytes = snapshot_bytes;
    ASSERT_OK(OnRanks(3, [&](Bootstrap& bootstrap) -> absl::Status {
      State state(Cut::kByColumns, bootstrap.rank(), bootstrap.size());
      state.Fill();
      WEFT_ASSIGN_OR_RETURN(const auto saver, CheckpointSaver::Open(bootstrap, root(), options_));
      WEFT_RETURN_IF_ERROR(saver->Start(state.ToSave(1)));
      WEFT_RETURN_IF_ERROR(saver->BeforeUpdate());
      state.Fill(-1);
      return saver->Finish();
    }));
    EXPECT_OK(Load(Cut::kByRows, 2));
  }
}

TEST_F(CheckpointTest, AdvancesInPhases) {
  ASSERT_OK(OnRanks(2, [&](Bootstrap& bootstrap) -> absl::Status {
    State state(Cut::kByRows, bootstrap.rank(), bootstrap.size());
    state.Fill();
    WEFT_ASSIGN_OR_RETURN(const auto saver, CheckpointSaver::Open(bootstrap, root(), options_));
    EXPECT_FALSE(saver->CanAdvance());
    WEFT_RETURN_IF_ERROR(saver->Start(state.ToSave(8)));
    EXPECT_TRUE(saver->saving());
    WEFT_ASSIGN_OR_RETURN(bool ended, saver->Advance());
    EXPECT_FALSE(ended);
    WEFT_ASSIGN_OR_RETURN(ended, saver->Advance());
    EXPECT_TRUE(ended);
    EXPECT_FALSE(saver->saving());
    EXPECT_FALSE(saver->CanAdvance());
    return absl::OkStatus();
  }));
  EXPECT_OK(Load(Cut::kByRows, 1, 8));
}

TEST_F(CheckpointTest, RefusesArraysOfOtherNamesAndShapes) {
  ASSERT_OK(Save(Cut::kByRows, 2));
  ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(Path(1)));
  EXPECT_THAT(checkpoint.Check("model", "other", {1}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'other'")));
  EXPECT_THAT(checkpoint.Check("optimizer", "matrix", {kRows, kColumns}),
              StatusIs(absl::StatusCode::kNotFound, _));
  EXPECT_THAT(checkpoint.Check("model", "matrix", {kRows, 1}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("another model")));
}

// Damage: all files of a checkpoint, changed in one place.
absl::Status OpenAndVerify(const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(path));
  return checkpoint.Verify();
}

TEST_F(CheckpointTest, DetectsFlippedBitsAndNamesTheFile) {
  ASSERT_OK(Save(Cut::kByColumns, 3));
  ASSERT_OK(OpenAndVerify(Path(1)));
  std::mt19937 random(1);
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(Path(1))) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  for (int i = 0; i < 200; ++i) {
    const std::string name = names[static_cast<size_t>(i) % names.size()];
    const std::string path = absl::StrCat(Path(1), "/", name);
    const std::string content = ReadFile(path);
    std::string damaged = content;
    const size_t bit = random() % (content.size() * 8);
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    folder_.Write(absl::StrCat("checkpoints/", CheckpointName(1), "/", name), damaged);
    if (!absl::EqualsIgnoreCase(content, damaged)) {
      EXPECT_THAT(OpenAndVerify(Path(1)), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(name))) << bit;
    }
    folder_.Write(absl::StrCat("checkpoints/", CheckpointName(1), "/", name), content);
  }
  EXPECT_OK(OpenAndVerify(Path(1)));
}

TEST_F(CheckpointTest, DetectsEveryTruncationAndEveryMissingFile) {
  ASSERT_OK(Save(Cut::kByRows, 2));
  for (const std::string name : {"checkpoint.json", "model.safetensors", "config.json"}) {
    const std::string path = absl::StrCat(Path(1), "/", name);
    const std::string content = ReadFile(path);
    for (size_t bytes = 0; bytes < content.size(); bytes += 7) {
      folder_.Write(absl::StrCat("checkpoints/", CheckpointName(1), "/", name), content.substr(0, bytes));
      EXPECT_THAT(OpenAndVerify(Path(1)), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(name)));
    }
    fs::remove(path);
    EXPECT_THAT(OpenAndVerify(Path(1)), StatusIs(absl::StatusCode::kNotFound, HasSubstr(name)));
    folder_.Write(absl::StrCat("checkpoints/", CheckpointName(1), "/", name), content);
  }
}

TEST_F(CheckpointTest, RefusesFilesOfAnotherCheckpoint) {
  ASSERT_OK(Save(Cut::kByRows, 2, {1}));
  ASSERT_OK(OnRanks(2, [&](Bootstrap& bootstrap) -> absl::Status {
    State state(Cut::kByRows, bootstrap.rank(), bootstrap.size());
    state.Fill(3);
    WEFT_ASSIGN_OR_RETURN(const auto saver, CheckpointSaver::Open(bootstrap, root(), options_));
    WEFT_RETURN_IF_ERROR(saver->Start(state.ToSave(2)));
    return saver->Finish();
  }));
  fs::copy_file(Path(2) + "/model.safetensors", Path(1) + "/model.safetensors",
                fs::copy_options::overwrite_existing);
  EXPECT_THAT(OpenAndVerify(Path(1)), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("model.safetensors")));
}

TEST_F(CheckpointTest, ChoosesTheNewestUsableOneAndNamesTheOthers) {
  ASSERT_OK(Save(Cut::kByRows, 2, {1, 2, 3}));
  const auto find = [&](std::vector<SkippedCheckpoint>& skipped) {
    std::string found;
    EXPECT_OK(OnRanks(3, [&](Bootstrap& bootstrap) -> absl::Status {
      std::vector<SkippedCheckpoint> own;
      WEFT_ASSIGN_OR_RETURN(const std::string path,
                            FindCheckpoint(bootstrap, root(), own, absl::Seconds(60)));
      if (bootstrap.rank() != 0) return absl::OkStatus();
      found = path;
      skipped = own;
      return absl::OkStatus();
    }));
    return found;
  };
  std::vector<SkippedCheckpoint> skipped;
  EXPECT_EQ(find(skipped), Path(3));
  EXPECT_TRUE(skipped.empty());
  // The last byte of the data, which no header names.
  const std::string model = ReadFile(Path(3) + "/model.safetensors");
  folder_.Write("checkpoints/step-00000003/model.safetensors", model.substr(0, model.size() - 1) + "!");
  EXPECT_EQ(find(skipped), Path(2));
  ASSERT_EQ(skipped.size(), 1);
  EXPECT_EQ(skipped[0].path, Path(3));
  EXPECT_THAT(skipped[0].reason, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("model.safetensors")));
}

TEST_F(CheckpointTest, SaysThatNoCheckpointIsUsable) {
  ASSERT_OK(Save(Cut::kByRows, 2, {1}));
  fs::remove(Path(1) + "/model.safetensors");
  EXPECT_THAT(OnRanks(2,
                      [&](Bootstrap& bootstrap) -> absl::Status {
                        std::vector<SkippedCheckpoint> skipped;
                        return FindCheckpoint(bootstrap, root(), skipped, absl::Seconds(60)).status();
                      }),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("none is usable")));
}

TEST_F(CheckpointTest, FindsNothingInAnEmptyOrMissingFolder) {
  for (const std::string& folder : {root(), folder_.str()}) {
    EXPECT_OK(OnRanks(2, [&](Bootstrap& bootstrap) -> absl::Status {
      std::vector<SkippedCheckpoint> skipped;
      WEFT_ASSIGN_OR_RETURN(const std::string path,
                            FindCheckpoint(bootstrap, folder, skipped, absl::Seconds(60)));
      EXPECT_EQ(path, "");
      return absl::OkStatus();
    }));
  }
}

TEST_F(CheckpointTest, DoesNotFollowLinksOutOfItsFolder) {
  ASSERT_OK(Save(Cut::kByRows, 1));
  const std::string outside = folder_.Write("outside.json", ReadFile(Path(1) + "/config.json"));
  fs::remove(Path(1) + "/config.json");
  fs::create_symlink(outside, Path(1) + "/config.json");
  EXPECT_THAT(OpenAndVerify(Path(1)),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("config.json")));
}

TEST(SnapshotWriter, FailsIfTheFileIsNotTheOneThatWasCreated) {
  const TempFolder folder;
  const std::string path = folder.Write("file", "12345678");
  const float value = 1;
  const SnapshotWriter::Item item{0, {.offset = 0, .run_bytes = 4}, reinterpret_cast<const char*>(&value)};
  SnapshotWriter missing({{folder / "none", 8}}, {item}, 0);
  EXPECT_THAT(missing.Wait(absl::Seconds(60)),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("all ranks share")));
  SnapshotWriter other({{path, 9}}, {item}, 0);
  EXPECT_THAT(other.Wait(absl::Seconds(60)),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("all ranks share")));
  SnapshotWriter right({{path, 8}}, {item}, 0);
  EXPECT_OK(right.Wait(absl::Seconds(60)));
}

}  // namespace
}  // namespace weft
