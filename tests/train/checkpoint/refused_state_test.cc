// States that a reader of checkpoints would refuse, and that the saver therefore does not commit.
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/test_timeout.h"
#include "tests/train/checkpoint/checkpoint_fixture.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::weft::testing::kTestTimeout;
using ::weft::testing::StatusIs;

class RefusedStateTest : public CheckpointTest {
 protected:
  using Change = std::function<void(CheckpointState& state, int rank)>;

  // Saves a changed state after a good one, which must stay, and then another good one.
  void ExpectRefused(const Change& change, const std::string& message) {
    fs::remove_all(root());
    options_.keep = 1;
    EXPECT_OK(OnRanks(2, [&](Bootstrap& bootstrap) -> absl::Status {
      SavedArrays arrays(ArrayCut::kByRows, bootstrap.rank(), bootstrap.size());
      arrays.Fill();
      WEFT_ASSIGN_OR_RETURN(const auto saver, CheckpointSaver::Open(bootstrap, root(), options_));
      const auto save = [&](CheckpointState state) -> absl::Status {
        WEFT_RETURN_IF_ERROR(saver->Start(std::move(state)));
        return saver->Finish();
      };
      WEFT_RETURN_IF_ERROR(save(arrays.ToSave(1)));
      CheckpointState changed = arrays.ToSave(2);
      change(changed, bootstrap.rank());
      EXPECT_THAT(save(std::move(changed)), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
      WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, absl::OkStatus(), kTestTimeout));
      if (bootstrap.rank() == 0) {
        EXPECT_THAT(Names(), ElementsAre("latest", "step-00000001"));
        EXPECT_OK(Checkpoint::Open(Path(1)).status());
      }
      WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, absl::OkStatus(), kTestTimeout));
      return save(arrays.ToSave(3));
    }));
    EXPECT_THAT(Names(), ElementsAre("latest", "step-00000003"));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "x.json"));
  }

  // Adds a parameter of one element, which rank 1 holds.
  static Change WithArray(const Parameter& parameter, float& value) {
    return [&](CheckpointState& state, int rank) {
      if (rank == 1)
        state.arrays.push_back({"model", "", {{&parameter, {0, 0, 0, 1, 1, 0}, &value, nullptr}}});
    };
  }
};

TEST_F(CheckpointTest, IsNoFolderOfCheckpoints) {
  ASSERT_OK(Save(ArrayCut::kByRows, 1));
  fs::create_directory(folder_ / "step-00000001");
  EXPECT_THAT(CheckpointAround(root()), IsEmpty());
  EXPECT_THAT(CheckpointAround(folder_ / "step-00000001"), IsEmpty());
  fs::create_directory_symlink(Path(1), folder_ / "link");
  fs::copy(Path(1), folder_ / "copy");
  for (const std::string& folder : {Path(1), Path(1) + "/", Path(1) + "/sub/folder", Path(2),
                                    std::string(folder_ / "link"), std::string(folder_ / "copy")}) {
    SCOPED_TRACE(folder);
    EXPECT_THAT(OnRanks(2,
                        [&](Bootstrap& bootstrap) {
                          return CheckpointSaver::Open(bootstrap, folder, options_).status();
                        }),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has the name of one")));
  }
  EXPECT_FALSE(fs::exists(Path(2)));
}

TEST_F(RefusedStateTest, HasANameThatIsNotThatOfAFileOfACheckpoint) {
  for (const std::string name : {"", ".rng", "checkpoint.json", "../x.json", "../latest", "a/b", "\xFF"}) {
    ExpectRefused([&](CheckpointState& state, int) { state.files[name] = "x"; },
                  "CheckpointState::files has '" + name + "'");
  }
}

TEST_F(RefusedStateTest, HasAFileOfTheNameOfTheWeights) {
  ExpectRefused([](CheckpointState& state, int) { state.files["model.safetensors"] = "x"; },
                "the checkpoint has two files named 'model.safetensors'");
}

TEST_F(RefusedStateTest, HasANegativeStep) {
  ExpectRefused([](CheckpointState& state, int) { state.step = -1; }, "CheckpointState::step is -1");
}

TEST_F(RefusedStateTest, HasATextThatIsTooLong) {
  const std::string text((1 << 20) + 1, 'x');
  ExpectRefused([&](CheckpointState& state, int) { state.properties["loader"] = text; },
                "CheckpointState::properties: 'loader' has more than 1048576 bytes in one string");
  // As JSON each of these has two bytes.
  const std::string quotes(600'000, '"');
  ExpectRefused([&](CheckpointState& state, int) { state.properties["quotes"] = quotes; }, "'quotes' has");
  ExpectRefused([&](CheckpointState& state, int) { state.counts[text] = 1; }, "CheckpointState::counts: 'x");
  ExpectRefused([&](CheckpointState& state, int) { state.counts_of_parameters[text] = 1; },
                "CheckpointState::counts_of_parameters: 'x");
}

TEST_F(RefusedStateTest, IsRefusedOnAllRanksIfOneRankHasIt) {
  const auto change = [](CheckpointState& state, int rank) {
    if (rank == 1) state.properties["loader"] = std::string((1 << 20) + 1, 'x');
  };
  ExpectRefused(change, "'loader'");
}

TEST_F(RefusedStateTest, HasATensorOfTooManyDims) {
  Parameter deep;
  deep.name = "deep";
  deep.shape = Shape(17, 1);
  float value = 1;
  ExpectRefused(WithArray(deep, value), "'deep' in 'model' has 17 dims, but at most 16 are allowed");
}

TEST_F(RefusedStateTest, HasATensorOfAnotherShapeOnAnotherRank) {
  Parameter odd[2];
  float value = 1;
  const auto change = [&](CheckpointState& state, int rank) {
    Parameter& parameter = odd[rank];
    parameter.name = "odd";
    parameter.shape = {2, rank + 1};
    state.arrays.push_back({"model", "", {{&parameter, {0, 0, rank, 1, 1, 0}, &value, nullptr}}});
  };
  ExpectRefused(change, "the array 'odd' has different shapes on different ranks");
}

TEST_F(RefusedStateTest, IsRefusedAtTheStartForATensor) {
  Parameter deep;
  deep.name = "deep";
  deep.shape = Shape(17, 1);
  float value = 1;
  ASSERT_OK(OnRanks(2, [&](Bootstrap& bootstrap) -> absl::Status {
    CheckpointState state;
    state.step = 1;
    WithArray(deep, value)(state, bootstrap.rank());
    WEFT_ASSIGN_OR_RETURN(const auto saver, CheckpointSaver::Open(bootstrap, root(), options_));
    EXPECT_THAT(saver->Start(std::move(state)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'deep' in 'model' has 17 dims")));
    return absl::OkStatus();
  }));
}

// The name is not that of a tensor in the format.
TEST_F(RefusedStateTest, HasATensorThatOnlyAReaderRefuses) {
  Parameter metadata;
  metadata.name = "__metadata__";
  metadata.shape = {1};
  float value = 1;
  ExpectRefused(WithArray(metadata, value),
                "a reader would refuse the checkpoint, so it is not committed; the reader would report \""
                "'model.safetensors': __metadata__ is not an object of strings\"");
}

}  // namespace
}  // namespace weft
