// Checkpoints of a training run: the one from which it goes on, and those that it saves.
//
// Thread safety: none.
// Collective: Open, Save, Advance and Finish, by all ranks in one order.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "src/train/loop/training_state.h"
#include "src/train/plan/run_plan.h"
#include "src/train/plan/run_properties.h"
#include "weft/mesh/bootstrap.h"
#include "weft/train/checkpoint.h"
#include "weft/train/config.h"

namespace weft {

class RunCheckpoints {
 public:
  // Opens --checkpoint-dir and finds the checkpoint of --resume. Checks that the run has the same fixed
  // properties as the one that saved it, and that a checkpoint of `state_bytes` fits on the disk.
  // Errors: kInvalidArgument (another run has the folder, or the folder has checkpoints and --resume is not
  //   given or names a checkpoint that is not in it, or a flag differs from the checkpoint's), kNotFound,
  //   kDataLoss (no checkpoint is usable, or it is one of other data or of another model, or another one on
  //   some rank), those of FindCheckpoint, and those of the system.
  static absl::StatusOr<std::unique_ptr<RunCheckpoints>> Open(Bootstrap& bootstrap,
                                                              const CheckpointConfig& config,
                                                              const RunPlan& plan,
                                                              const std::vector<RunProperty>& properties,
                                                              int64_t state_bytes, absl::Duration timeout);

  // The checkpoint from which the run goes on; null for a new run, and after CloseResumed.
  const Checkpoint* resumed() const { return resumed_ ? &*resumed_ : nullptr; }
  // Closes its files. A save may remove them; while they are open, they keep their space on the disk.
  void CloseResumed() { resumed_.reset(); }
  // The step after which the run goes on; unset for a new run.
  std::optional<int64_t> resumed_step() const { return resumed_step_; }
  int64_t first_step() const { return resumed_step_.value_or(0) + 1; }
  // Steps without an update, and those of them that --max-skipped-steps counts.
  struct Skips {
    int64_t all = 0;
    int64_t counted = 0;
  };
  const Skips& skips() const { return skips_; }  // Of the run until that checkpoint.
  // Checks that the run allows the steps and the skips that the checkpoint has. Not collective. REQUIRES: no
  // CloseResumed. Errors: kInvalidArgument (names the flag).
  absl::Status CheckLimits(const OptimizerOptions& optimizer) const;
  // Lines for the user, on rank 0: the checkpoints that were found, skipped and removed.
  const std::vector<std::string>& messages() const { return messages_; }

  // True if the run saves checkpoints.
  bool enabled() const { return saver_ != nullptr; }
  // True if the interval requires a checkpoint after this step.
  bool IsDue(int64_t step) const { return enabled() && config_.interval > 0 && step % config_.interval == 0; }

  // Saves the state after `step`. With --checkpoint-async, only begins to. `files`: see CheckpointState.
  // REQUIRES: enabled().
  absl::Status Save(const TrainingState& training, int64_t step, const Skips& skips,
                    std::map<std::string, std::string> files);
  absl::Status BeforeUpdate() { return enabled() ? saver_->BeforeUpdate() : absl::OkStatus(); }
  bool CanAdvance() const { return enabled() && saver_->CanAdvance(); }
  // Advances the save under way. REQUIRES: CanAdvance on all ranks.
  absl::Status Advance();
  // Waits until the save that is under way has ended.
  absl::Status Finish();
  // Returns the path of the newest checkpoint that was committed since the last call; empty without one.
  std::string TakeSaved() { return std::exchange(saved_, ""); }
  // Warnings since the last call, on rank 0: old checkpoints that could not be removed.
  std::vector<std::string> TakeWarnings() {
    return enabled() ? saver_->TakeWarnings() : std::vector<std::string>();
  }
  // The path of the last checkpoint that this run has saved; empty without one.
  const std::string& last_saved() const { return last_saved_; }

 private:
  RunCheckpoints(Bootstrap& bootstrap, const CheckpointConfig& config, const RunPlan& plan,
                 absl::Duration timeout)
      : bootstrap_(bootstrap), config_(config), plan_(plan), timeout_(timeout) {}
  absl::Status Claim(int64_t state_bytes);
  absl::Status Resume();
  absl::StatusOr<std::string> FindIn(const std::string& folder);
  void NoteChanges();
  absl::Status CheckFolderIsOfThisRun() const;
  absl::Status CheckProperties() const;
  void SetSaved(int64_t step);

  Bootstrap& bootstrap_;
  const CheckpointConfig config_;
  const RunPlan& plan_;
  const absl::Duration timeout_;
  std::map<std::string, std::string> properties_;     // Fixed properties of the run, by name.
  std::map<std::string, std::string> absent_values_;  // RunProperty::absent of each.
  std::vector<RunProperty> noted_;                    // Those with RunProperty::if_changed.
  std::vector<std::string> messages_;
  std::optional<Checkpoint> resumed_;
  std::optional<int64_t> resumed_step_;
  Skips skips_;
  std::unique_ptr<CheckpointSaver> saver_;  // Null without --checkpoint-dir.
  std::string saved_;
  std::string last_saved_;
  std::optional<int64_t> parent_;  // Of the next save: see CheckpointState.
};

}  // namespace weft
