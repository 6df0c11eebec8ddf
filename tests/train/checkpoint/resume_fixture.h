// A run that is interrupted and goes on from a checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "tests/train/train_run.h"

namespace weft {

class ResumeTest : public TrainRun {
 protected:
  ResumeTest() {
    config_.data.batch_size = 12;
    config_.optimizer.steps = kSteps;
    config_.optimizer.lr_schedule = LrDecay::kConstant;
  }
  static constexpr int64_t kSteps = 8;
  static constexpr int64_t kStop = 4;

  std::string root() const { return folder_ / "checkpoints"; }
  // The run that goes on after kStop steps of `before`.
  Result Interrupted(const Mesh& before, const Mesh& after) {
    std::filesystem::remove_all(root());
    config_.checkpoint.folder = root();
    config_.checkpoint.resume.clear();
    config_.optimizer.steps = kStop;
    Run(before);
    config_.checkpoint.resume = "auto";
    config_.optimizer.steps = kSteps;
    Result result = Run(after);
    config_.checkpoint = {};
    return result;
  }
};

}  // namespace weft
