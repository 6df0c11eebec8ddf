// Exports of models of programs to Hugging Face folders.
#include "weft/train/hf_weights.h"

#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_folder.h"
#include "weft/mesh/thread_bootstrap.h"
#include "weft/nn/initialize.h"
#include "weft/nn/linear.h"
#include "weft/train/checkpoint.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

// The export of a layer on one rank. With `checkpoints`, saves it there as the checkpoint of step 1 before.
absl::Status Export(const std::string& folder, const std::string& checkpoints) {
  return RunThreadRanks(NodeMap::OneNode(1), [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const auto heap, NodeHeap::Create(bootstrap, {.segment_bytes = 16 << 20}));
    WEFT_ASSIGN_OR_RETURN(const auto engine, CommEngine::Create(bootstrap, *heap));
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Create({{"shard", 1}}, 1));
    Linear layer("layer", 3, 2);
    WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(layer, {}, mesh, *engine, {}, LoadInitialValues(1)));
    if (!checkpoints.empty()) {
      CheckpointState state;
      state.step = 1;
      state.arrays = {{"model", "", model->Shards()}};
      WEFT_ASSIGN_OR_RETURN(const auto saver, CheckpointSaver::Open(bootstrap, checkpoints, {}));
      WEFT_RETURN_IF_ERROR(saver->Start(std::move(state)));
      WEFT_RETURN_IF_ERROR(saver->Finish());
    }
    return ExportToHf(bootstrap, *model, folder, {});
  });
}

TEST(ExportToHf, WritesIntoAFolderWithoutCheckpointsOnly) {
  const TempFolder folder;
  const std::string checkpoints = folder / "checkpoints";
  const std::string checkpoint = checkpoints + "/" + CheckpointName(1);
  EXPECT_OK(Export(folder / "model", ""));
  EXPECT_TRUE(std::filesystem::exists(folder / "model/model.safetensors"));
  EXPECT_THAT(Export(checkpoint, checkpoints),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(checkpoint + "' is a checkpoint")));
  EXPECT_THAT(Export(checkpoints, checkpoints),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("' has checkpoints, as step-00000001")));
  ASSERT_OK_AND_ASSIGN(const Checkpoint saved, Checkpoint::Open(checkpoint));
  EXPECT_OK(saved.Verify());
}

}  // namespace
}  // namespace weft
