// Saving and loading of checkpoints over ranks that are threads: partitions of any kind, commit, removal.
#include "weft/train/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/train/checkpoint/snapshot_writer.h"
#include "tests/support/test_timeout.h"
#include "tests/train/checkpoint/checkpoint_fixture.h"
#include "weft/train/safetensors.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

using ::testing::_;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::weft::testing::kTestTimeout;
using ::weft::testing::StatusIs;

TEST_F(CheckpointTest, LoadsOntoEveryPartition) {
  struct Partition {
    ArrayCut cut;
    int ranks;
  };
  const Partition partitions[] = {{ArrayCut::kByRows, 1},    {ArrayCut::kByRows, 3},
                                  {ArrayCut::kByRows, 4},    {ArrayCut::kByColumns, 2},
                                  {ArrayCut::kByColumns, 3}, {ArrayCut::kOneRank, 2}};
  for (const Partition& saved : partitions) {
    fs::remove_all(root());
    ASSERT_OK(Save(saved.cut, saved.ranks));
    for (const Partition& loaded : partitions) EXPECT_OK(Load(loaded.cut, loaded.ranks));
  }
}

TEST_F(CheckpointTest, HasTheSameFilesFromEveryPartition) {
  ASSERT_OK(Save(ArrayCut::kByRows, 1));
  const std::string one = ReadFile(Path(1) + "/model.safetensors");
  for (const ArrayCut cut : {ArrayCut::kByRows, ArrayCut::kByColumns, ArrayCut::kOneRank}) {
    fs::remove_all(root());
    ASSERT_OK(Save(cut, 3));
    ASSERT_OK_AND_ASSIGN(const SafetensorsReader reader, SafetensorsReader::Open(Path(1)));
    std::vector<float> values(kMatrixRows * kMatrixColumns);
    ASSERT_OK(reader.Check("matrix", {kMatrixRows, kMatrixColumns}));
    ASSERT_OK(reader.Read("matrix", 0, absl::MakeSpan(values)));
    for (int64_t i = 0; i < kMatrixRows * kMatrixColumns; ++i)
      EXPECT_EQ(values[static_cast<size_t>(i)], SavedArrays::Value("matrix", i));
  }
  EXPECT_EQ(one.size(), fs::file_size(Path(1) + "/model.safetensors"));
}

TEST_F(CheckpointTest, KeepsStepCountsPropertiesAndFiles) {
  ASSERT_OK(Save(ArrayCut::kByRows, 2, {17}));
  ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(Path(17)));
  EXPECT_EQ(checkpoint.step(), 17);
  EXPECT_EQ(checkpoint.counts().at("count"), 3);
  EXPECT_EQ(checkpoint.properties().at("name"), "value");
  EXPECT_EQ(checkpoint.counts_of_parameters().at("vector"), 2);
  EXPECT_EQ(ReadFile(Path(17) + "/config.json"), "{}\n");
  EXPECT_EQ(ReadFile(root() + "/latest"), "step-00000017\n");
}

TEST_F(CheckpointTest, KeepsTheNewestCheckpoints) {
  options_.keep = 2;
  ASSERT_OK(Save(ArrayCut::kByRows, 2, {10, 20, 30}));
  EXPECT_THAT(Names(), ElementsAre("latest", "step-00000020", "step-00000030"));
  options_.keep = 0;
  ASSERT_OK(Save(ArrayCut::kByRows, 2, {40, 50}));
  EXPECT_THAT(Names(),
              ElementsAre("latest", "step-00000020", "step-00000030", "step-00000040", "step-00000050"));
}

TEST_F(CheckpointTest, ReplacesACheckpointOfTheSameStep) {
  ASSERT_OK(Save(ArrayCut::kByRows, 2, {5, 6, 5}));
  EXPECT_THAT(Names(), ElementsAre("latest", "step-00000005", "step-00000006"));
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, ListCheckpoints(root()));
  EXPECT_THAT(names, ElementsAre("step-00000005", "step-00000006"));
  EXPECT_OK(Load(ArrayCut::kByRows, 3, 5));
}

TEST_F(CheckpointTest, NeverRemovesTheLatestOfAnEarlierStep) {
  options_.keep = 1;
  ASSERT_OK(Save(ArrayCut::kByRows, 2, {9, 4}));
  EXPECT_THAT(Names(), ElementsAre("latest", "step-00000004"));
}

TEST_F(CheckpointTest, AreListedAndRemovedByTheOrderOfTheirSaves) {
  ASSERT_OK(Save(ArrayCut::kByRows, 2, {2, 4, 6}));
  ASSERT_OK(Save(ArrayCut::kByRows, 2, {3}, /*parent=*/2));  // Goes on from step 2 and leaves 4 and 6 behind.
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> kept, ListCheckpoints(root()));
  EXPECT_THAT(kept, ElementsAre("step-00000003", "step-00000002", "step-00000006"));
  ASSERT_OK(Save(ArrayCut::kByRows, 2, {5}));
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> next, ListCheckpoints(root()));
  EXPECT_THAT(next, ElementsAre("step-00000005", "step-00000003", "step-00000002"));
  EXPECT_EQ(ReadFile(root() + "/latest"), "step-00000005\nstep-00000003\nstep-00000002\n");
}

TEST_F(CheckpointTest, BeforeAParentAreKeptLongerThanThoseThatTheTrainingLeft) {
  ASSERT_OK(Save(ArrayCut::kByRows, 2, {2, 4, 6}));
  ASSERT_OK(Save(ArrayCut::kByRows, 2, {5}, /*parent=*/4));
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> kept, ListCheckpoints(root()));
  EXPECT_THAT(kept, ElementsAre("step-00000005", "step-00000004", "step-00000002"));
}

// Their order would change without a word.
TEST_F(CheckpointTest, AreNotListedWithoutALatestThatCannotBeRead) {
  ASSERT_OK(Save(ArrayCut::kByRows, 2, {9, 4}));
  fs::remove(root() + "/latest");
  fs::create_directory(root() + "/latest");
  EXPECT_THAT(ListCheckpoints(root()).status().message(), HasSubstr("/latest': Is a directory: remove it"));
  fs::remove(root() + "/latest");
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, ListCheckpoints(root()));
  EXPECT_THAT(names, ElementsAre("step-00000009", "step-00000004"));
}

TEST_F(CheckpointTest, ThatLatestDoesNotListAreOlder) {
  options_.keep = 0;
  ASSERT_OK(Save(ArrayCut::kByRows, 2, {1, 9, 5}));
  folder_.Write("checkpoints/latest", "step-00000005\nstep-00000007\nstep-00000005\n../step-00000001\n");
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, ListCheckpoints(root()));
  EXPECT_THAT(names, ElementsAre("step-00000005", "step-00000009", "step-00000001"));
}

TEST_F(CheckpointTest, LeavesFoldersAloneWhoseNamesItWouldNotGive) {
  options_.keep = 1;
  const char* names[] = {"step-1", "step-+0000001", "step--0000001", "step-000000001", "step-00000001-old"};
  for (const char* name : names) folder_.Write(absl::StrCat("checkpoints/", name, "/notes"), "of the user");
  ASSERT_OK(Save(ArrayCut::kByRows, 1, {2, 3}));
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> listed, ListCheckpoints(root()));
  EXPECT_THAT(listed, ElementsAre("step-00000003"));
  for (const char* name : names) EXPECT_TRUE(fs::exists(absl::StrCat(root(), "/", name, "/notes"))) << name;
}

TEST_F(CheckpointTest, RemovesTheRemainsOfKilledSaves) {
  folder_.Write("checkpoints/.saving-step-00000003-ab/model.safetensors", "x");
  folder_.Write("checkpoints/.removing-step-00000002-ab/model.safetensors", "x");
  folder_.Write("checkpoints/latest.partial-0123456789abcdef", "x");
  const char* of_the_user[] = {"latest.partial-copy", "latest.partial-0123456789abcdefg", "latest.partial-"};
  for (const char* name : of_the_user) folder_.Write(absl::StrCat("checkpoints/", name), "x");
  ASSERT_OK(OnRanks(2, [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto saver, CheckpointSaver::Open(bootstrap, root(), options_));
    EXPECT_EQ(saver->removed().size(), bootstrap.rank() == 0 ? 3 : 0);
    return absl::OkStatus();
  }));
  EXPECT_FALSE(fs::exists(Path(1)));
  EXPECT_FALSE(fs::exists(root() + "/latest.partial-0123456789abcdef"));
  for (const char* name : of_the_user) EXPECT_TRUE(fs::exists(absl::StrCat(root(), "/", name))) << name;
}

TEST_F(CheckpointTest, RefusesAFolderThatAnotherRunHas) {
  EXPECT_OK(OnRanks(1, [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto saver, CheckpointSaver::Open(bootstrap, root(), options_));
    EXPECT_THAT(CheckpointSaver::Open(bootstrap, root(), options_).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("another run")));
    return absl::OkStatus();
  }));
}

TEST_F(CheckpointTest, TakesTheTimeoutOfTheEnvironmentUnlessItsOptionsHaveOne) {
  setenv("WEFT_TIMEOUT_S", "soon", 1);
  const auto open = [&](Bootstrap& bootstrap) {
    return CheckpointSaver::Open(bootstrap, root(), options_).status();
  };
  EXPECT_THAT(OnRanks(2, open), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("WEFT_TIMEOUT_S")));
  options_.timeout = kTestTimeout;
  EXPECT_OK(OnRanks(2, open));
  unsetenv("WEFT_TIMEOUT_S");
}

TEST_F(CheckpointTest, EndsASaveWithoutACommitAndLeavesNothing) {
  ASSERT_OK(OnRanks(2, [&](Bootstrap& bootstrap) -> absl::Status {
    SavedArrays state(ArrayCut::kByRows, bootstrap.rank(), bootstrap.size());
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
      SavedArrays state(ArrayCut::kByRows, 0, parts);
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
    SavedArrays state(ArrayCut::kByColumns, bootstrap.rank() % 2, 2);
    state.Fill();
    WEFT_ASSIGN_OR_RETURN(const auto saver, CheckpointSaver::Open(bootstrap, root(), options));
    WEFT_RETURN_IF_ERROR(saver->Start(state.ToSave(1)));
    return saver->Finish();
  }));
  EXPECT_OK(Load(ArrayCut::kByRows, 3));
}

TEST_F(CheckpointTest, NamesRanksThatSaveDifferentSteps) {
  EXPECT_THAT(OnRanks(2,
                      [&](Bootstrap& bootstrap) -> absl::Status {
                        SavedArrays state(ArrayCut::kByRows, bootstrap.rank(), 2);
                        WEFT_ASSIGN_OR_RETURN(const auto saver,
                                              CheckpointSaver::Open(bootstrap, root(), options_));
                        return saver->Start(state.ToSave(bootstrap.rank()));
                      }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("saves step")));
}

TEST_F(CheckpointTest, NamesAParameterWhoseCountDiffersFromRankToRank) {
  EXPECT_THAT(OnRanks(2,
                      [&](Bootstrap& bootstrap) -> absl::Status {
                        SavedArrays state(ArrayCut::kByRows, bootstrap.rank(), 2);
                        CheckpointState to_save = state.ToSave(1);
                        to_save.counts_of_parameters["matrix"] = bootstrap.rank();
                        WEFT_ASSIGN_OR_RETURN(const auto saver,
                                              CheckpointSaver::Open(bootstrap, root(), options_));
                        WEFT_RETURN_IF_ERROR(saver->Start(std::move(to_save)));
                        return saver->Finish();
                      }),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("ranks that hold 'matrix' have different counts for it")));
  EXPECT_FALSE(fs::exists(Path(1)));
}

TEST_F(CheckpointTest, WritesTheValuesOfTheStartWhileShardsChange) {
  for (const int64_t snapshot_bytes : {int64_t{0}, int64_t{100}, int64_t{1} << 20}) {
    fs::remove_all(root());
    options_.snapshot_bytes = snapshot_bytes;
    ASSERT_OK(OnRanks(3, [&](Bootstrap& bootstrap) -> absl::Status {
      SavedArrays state(ArrayCut::kByColumns, bootstrap.rank(), bootstrap.size());
      state.Fill();
      WEFT_ASSIGN_OR_RETURN(const auto saver, CheckpointSaver::Open(bootstrap, root(), options_));
      WEFT_RETURN_IF_ERROR(saver->Start(state.ToSave(1)));
      WEFT_RETURN_IF_ERROR(saver->BeforeUpdate());
      state.Fill(-1);
      return saver->Finish();
    }));
    EXPECT_OK(Load(ArrayCut::kByRows, 2));
  }
}

TEST_F(CheckpointTest, AdvancesInPhases) {
  ASSERT_OK(OnRanks(2, [&](Bootstrap& bootstrap) -> absl::Status {
    SavedArrays state(ArrayCut::kByRows, bootstrap.rank(), bootstrap.size());
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
  EXPECT_OK(Load(ArrayCut::kByRows, 1, 8));
}

TEST_F(CheckpointTest, RefusesASaveWhileAnotherIsUnderWayAndEndsThatOne) {
  ASSERT_OK(OnRanks(2, [&](Bootstrap& bootstrap) -> absl::Status {
    SavedArrays state(ArrayCut::kByRows, bootstrap.rank(), bootstrap.size());
    state.Fill();
    WEFT_ASSIGN_OR_RETURN(const auto saver, CheckpointSaver::Open(bootstrap, root(), options_));
    EXPECT_THAT(saver->Advance(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no save is under way")));
    WEFT_RETURN_IF_ERROR(saver->Start(state.ToSave(8)));
    EXPECT_THAT(saver->Start(state.ToSave(9)),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("the save of step 8 is under way: call Finish before the next Start")));
    EXPECT_TRUE(saver->saving());
    EXPECT_EQ(saver->saving_step(), 8);
    return saver->Finish();
  }));
  EXPECT_OK(Load(ArrayCut::kByRows, 1, 8));
  EXPECT_THAT(Names(), ElementsAre("latest", "step-00000008"));
}

TEST_F(CheckpointTest, RefusesFoldersAndOptionsThatDifferBetweenRanks) {
  const auto open = [&](const std::function<void(std::string & folder, CheckpointOptions&)>& change) {
    return OnRanks(2, [&](Bootstrap& bootstrap) {
      std::string folder = root();
      CheckpointOptions options = options_;
      if (bootstrap.rank() == 1) change(folder, options);
      return CheckpointSaver::Open(bootstrap, folder, options).status();
    });
  };
  EXPECT_THAT(open([](std::string& folder, CheckpointOptions&) { folder += "2"; }),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("the folder of checkpoints is " + root() + " on rank 0, but " + root() +
                                 "2 on rank 1: give it alike on all ranks")));
  EXPECT_FALSE(fs::exists(root()));
  EXPECT_THAT(open([](std::string&, CheckpointOptions& options) { options.max_file_bytes = 1; }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("CheckpointOptions::max_file_bytes")));
  EXPECT_THAT(open([](std::string&, CheckpointOptions& options) { options.replicas = 2; }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("CheckpointOptions::replicas")));
}

TEST_F(CheckpointTest, RefusesArraysOfOtherNamesAndShapes) {
  ASSERT_OK(Save(ArrayCut::kByRows, 2));
  ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(Path(1)));
  EXPECT_THAT(checkpoint.Check("model", "other", {1}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'other'")));
  EXPECT_THAT(checkpoint.Check("optimizer", "matrix", {kMatrixRows, kMatrixColumns}),
              StatusIs(absl::StatusCode::kNotFound, _));
  EXPECT_THAT(checkpoint.Check("model", "matrix", {kMatrixRows, 1}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("another model")));
}

TEST_F(CheckpointTest, IsNotExportedToThePlaceOfACheckpoint) {
  ASSERT_OK(Save(ArrayCut::kByRows, 2));
  ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(Path(1)));
  const auto refused = [](const char* reason) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(reason));
  };
  EXPECT_THAT(checkpoint.ExportHf(Path(1)), refused("is the checkpoint itself"));
  EXPECT_THAT(checkpoint.ExportHf(Path(2)), refused("is the place of a checkpoint"));
  EXPECT_THAT(checkpoint.ExportHf(root()), refused("has checkpoints"));
  EXPECT_OK(checkpoint.ExportHf(folder_ / "step-00000002"));
  EXPECT_OK(Load(ArrayCut::kByRows, 1));
}

// The range is large, so that most of it is still to be written when its first value is in the file.
TEST(SnapshotWriter, KeepsUpdatesFromARangeThatIsBeingWritten) {
  constexpr int64_t kRunBytes = 16 << 10;
  constexpr int64_t kRuns = 2048;
  std::vector<float> values(static_cast<size_t>(kRuns * kRunBytes) / sizeof(float), 1.0F);
  const TempFolder folder;
  const std::string path = folder.Write("file", std::string(static_cast<size_t>(kRuns * kRunBytes), '\0'));
  const auto read = [&](size_t count) {
    std::vector<float> found(count);
    std::ifstream(path, std::ios::binary)
        .read(reinterpret_cast<char*>(found.data()), static_cast<std::streamsize>(count * sizeof(float)));
    return found;
  };
  const FileRange range = {.offset = 0, .run_bytes = kRunBytes, .runs = kRuns, .stride = kRunBytes};
  SnapshotWriter writer({{path, kRuns * kRunBytes}},
                        {{0, range, reinterpret_cast<const char*>(values.data())}},
                        /*snapshot_bytes=*/0);
  while (!writer.done() && read(1).front() == 0.0F) std::this_thread::yield();
  EXPECT_OK(writer.BeforeUpdate(kTestTimeout));
  std::fill(values.rbegin(), values.rend(), 2.0F);
  EXPECT_OK(writer.Wait(kTestTimeout));
  EXPECT_TRUE(read(values.size()) == std::vector<float>(values.size(), 1.0F));
}

TEST(SnapshotWriter, FailsIfTheFileIsNotTheOneThatWasCreated) {
  const TempFolder folder;
  const std::string path = folder.Write("file", "12345678");
  const float value = 1;
  const SnapshotWriter::Item item{0, {.offset = 0, .run_bytes = 4}, reinterpret_cast<const char*>(&value)};
  SnapshotWriter missing({{folder / "none", 8}}, {item}, 0);
  EXPECT_THAT(missing.Wait(kTestTimeout),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("all ranks share")));
  SnapshotWriter other({{path, 9}}, {item}, 0);
  EXPECT_THAT(other.Wait(kTestTimeout), StatusIs(absl::StatusCode::kNotFound, HasSubstr("all ranks share")));
  SnapshotWriter right({{path, 8}}, {item}, 0);
  EXPECT_OK(right.Wait(kTestTimeout));
}

}  // namespace
}  // namespace weft
