// Fixture of small training runs with sparse attention over ranks that are threads.
#pragma once

#include <filesystem>
#include <string>

#include "tests/train/train_run.h"
#include "weft/train/checkpoint.h"

namespace weft {

class SparseRun : public TrainRun {
 protected:
  SparseRun() {
    config_.attention.kind = AttentionKind::kDsa;
    config_.attention.top_k = kSelecting;
    config_.attention.index_heads = 2;
    config_.attention.index_dim = 8;
  }
  static constexpr int64_t kSelecting = 5;  // Of the 16 keys of a sequence.
  static constexpr int64_t kAll = 1000;

  // A file of the only checkpoint of a run of `steps` steps on one rank.
  std::string SavedFile(const std::string& name) { return ReadFile(Saved() + "/" + name); }
  std::string Saved() const {
    return absl::StrCat(folder_ / "checkpoints", "/", CheckpointName(config_.optimizer.steps));
  }
  void RunAndSave(const Mesh& mesh = {1, 1}) {
    std::filesystem::remove_all(folder_ / "checkpoints");
    config_.checkpoint.folder = folder_ / "checkpoints";
    config_.checkpoint.keep = 0;
    config_.checkpoint.interval = 1;
    Run(mesh);
    config_.checkpoint = {};
  }
};

}  // namespace weft
