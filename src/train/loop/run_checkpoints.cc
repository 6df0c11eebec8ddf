#include "src/train/loop/run_checkpoints.h"

#include <filesystem>
#include <sys/stat.h>
#include <system_error>
#include <utility>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "src/train/checkpoint/checkpoint_folder.h"
#include "src/train/config/flag_error.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr const char* kSkippedSteps = "skipped_steps";
constexpr const char* kCountedSkips = "counted_skips";  // Missing in older checkpoints: all count.
constexpr const char* kBatchSize = "--batch-size";

bool IsFile(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

bool IsFolder(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

// A run of the folder around the checkpoint would later remove all that this one saves.
absl::Status CheckIsNotInCheckpoint(const std::string& folder) {
  const std::string checkpoint = CheckpointAround(folder);
  if (checkpoint.empty()) return absl::OkStatus();
  return BadFlag("checkpoint-dir", folder,
                 absl::StrCat("is a checkpoint, inside of one, or has the name of one (", checkpoint,
                              "), which a run removes with all that is in it: to go on from that checkpoint, "
                              "give --resume ",
                              checkpoint, " and --checkpoint-dir ",
                              std::filesystem::path(checkpoint).parent_path().native(),
                              "; otherwise name another folder"));
}

// Without --resume the folder must be unused.
absl::Status CheckHasNoCheckpoints(const std::string& folder) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> present, ListCheckpoints(folder));
  if (present.empty()) return absl::OkStatus();
  return BadFlag("checkpoint-dir", folder,
                 absl::StrCat("has checkpoints of an earlier run, the newest is ", present.front(),
                              ": give --resume auto to go on from it, or name another folder"));
}

RunCheckpoints::Skips SkipsOf(const Checkpoint& checkpoint) {
  const auto count = [&](const char* name, int64_t missing) {
    const auto found = checkpoint.counts().find(name);
    return found == checkpoint.counts().end() ? missing : found->second;
  };
  const int64_t all = count(kSkippedSteps, 0);
  return {all, count(kCountedSkips, all)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunCheckpoints>> RunCheckpoints::Open(
    Bootstrap& bootstrap, const CheckpointConfig& config, const RunPlan& plan,
    const std::vector<RunProperty>& properties, int64_t state_bytes, absl::Duration timeout) {
  std::unique_ptr<RunCheckpoints> run(new RunCheckpoints(bootstrap, config, plan, timeout));
  for (const RunProperty& property : properties) {
    if (!property.if_changed.empty()) run->noted_.push_back(property);
    if (!property.fixed) continue;
    run->properties_[property.name] = property.value;
    run->absent_values_[property.name] = property.absent;
  }
  // Saves the resolved value: the default depends on the mesh, which may change.
  run->properties_[kBatchSize] = absl::StrCat(plan.batch.batch_size);
  if (!config.folder.empty()) WEFT_RETURN_IF_ERROR(run->Claim(state_bytes));
  if (!config.resume.empty()) WEFT_RETURN_IF_ERROR(run->Resume());
  return run;
}

absl::Status RunCheckpoints::Claim(int64_t state_bytes) {
  CheckpointOptions options;
  options.keep = config_.keep;
  options.timeout = timeout_;
  // Without a shared optimizer every replica has all elements.
  if (!plan_.parallel.shard_optimizer_over_replicas) {
    options.replicas = plan_.replicate_size;
    options.replica = bootstrap_.rank() / plan_.shard_group_size();
  }
  const bool first = bootstrap_.rank() == 0;
  // Checks the folder before the saver opens it, which would create it.
  absl::Status usable = absl::OkStatus();
  if (first) usable = CheckIsNotInCheckpoint(config_.folder);
  if (first && usable.ok() && config_.resume.empty()) usable = CheckHasNoCheckpoints(config_.folder);
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap_, usable, timeout_));
  absl::StatusOr<std::unique_ptr<CheckpointSaver>> saver =
      CheckpointSaver::Open(bootstrap_, config_.folder, options);
  if (!saver.ok()) return Annotate(saver.status(), absl::StrCat("--checkpoint-dir ", config_.folder));
  saver_ = *std::move(saver);
  for (const std::string& removed : saver_->removed()) {
    messages_.push_back(absl::StrCat("removed  ", removed, ", the remains of a save that was killed"));
  }
  for (const std::string& warning : saver_->TakeWarnings()) {
    messages_.push_back(absl::StrCat("warning  ", warning));
  }
  return AgreeOnStatus(bootstrap_, saver_->CheckSpace(state_bytes), timeout_);
}

absl::Status RunCheckpoints::Resume() {
  std::string path = config_.resume;
  const bool automatic = path == "auto";
  if (automatic) {
    WEFT_ASSIGN_OR_RETURN(path, FindIn(config_.folder));
    if (path.empty()) {
      messages_.push_back(absl::StrCat("resume   no checkpoint in ", config_.folder, ": starting at step 0"));
      return absl::OkStatus();
    }
  } else {
    // Rank 0 decides what the path is.
    std::string kind = "missing";
    if (IsFolder(path)) kind = IsFile(path + "/checkpoint.json") ? "checkpoint" : "folder";
    WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> kinds,
                          ExchangeBlobs(bootstrap_, "kind of --resume", kind, timeout_));
    if (kinds[0] == "missing") {
      return absl::NotFoundError(absl::StrCat("--resume ", path, ": there is no such folder"));
    }
    if (kinds[0] == "folder") {
      WEFT_ASSIGN_OR_RETURN(path, FindIn(path));
      if (path.empty())
        return absl::NotFoundError(absl::StrCat("--resume ", config_.resume, ": has no checkpoint"));
    }
  }
  WEFT_ASSIGN_OR_RETURN(resumed_, Checkpoint::OpenOnAllRanks(bootstrap_, path, timeout_));
  resumed_step_ = resumed_->step();
  skips_ = SkipsOf(*resumed_);
  const std::string in_folder = absl::StrCat(config_.folder, "/", CheckpointName(resumed_->step()));
  std::error_code missing;
  if (std::filesystem::equivalent(path, in_folder, missing)) parent_ = resumed_step_;
  messages_.push_back(absl::StrCat("resume   ", path, ", after step ", *resumed_step_));
  NoteChanges();
  absl::Status status = CheckFolderIsOfThisRun();
  if (status.ok()) status = CheckProperties();
  return AgreeOnStatus(bootstrap_, status, timeout_);
}

absl::Status RunCheckpoints::CheckFolderIsOfThisRun() const {
  if (bootstrap_.rank() != 0 || config_.folder.empty() || parent_) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> present, ListCheckpoints(config_.folder));
  if (present.empty()) return absl::OkStatus();
  return BadFlag("checkpoint-dir", config_.folder,
                 absl::StrCat("has checkpoints of another run than --resume ", config_.resume,
                              ", which would replace them; the newest is ", present.front(),
                              ": name another folder, or give --resume auto to go on from it"));
}

absl::StatusOr<std::string> RunCheckpoints::FindIn(const std::string& folder) {
  std::vector<SkippedCheckpoint> skipped;
  WEFT_ASSIGN_OR_RETURN(std::string path, FindCheckpoint(bootstrap_, folder, skipped, timeout_));
  for (const SkippedCheckpoint& checkpoint : skipped) {
    messages_.push_back(
        absl::StrCat("warning  ", checkpoint.path, " is not used: ", checkpoint.reason.message()));
  }
  return path;
}

void RunCheckpoints::NoteChanges() {
  for (const RunProperty& property : noted_) {
    const auto saved = resumed_->properties().find(property.name);
    if (saved == resumed_->properties().end() || saved->second == property.value) continue;
    messages_.push_back(absl::StrCat("warning  ", property.name, " is ", property.value,
                                     ", but the checkpoint has ", saved->second, ": ", property.if_changed));
  }
}

absl::Status RunCheckpoints::CheckProperties() const {
  std::vector<std::string> differences;
  bool flag = false;
  for (const auto& [name, value] : properties_) {
    const auto saved = resumed_->properties().find(name);
    const std::string before =
        saved == resumed_->properties().end() ? absent_values_.at(name) : saved->second;
    if (before == value) continue;
    differences.push_back(
        absl::StrCat(name, " is ", value, ", but the checkpoint ",
                     before == kNotGiven ? "was written without it" : absl::StrCat("has ", before)));
    flag = flag || absl::StartsWith(name, "--");
  }
  if (differences.empty()) return absl::OkStatus();
  const std::string message =
      absl::StrCat("cannot go on from '", resumed_->folder(), "': ", absl::StrJoin(differences, "; "),
                   ": give the values of the checkpoint, or start a new run in another --checkpoint-dir");
  return flag ? absl::InvalidArgumentError(message) : absl::DataLossError(message);
}

absl::Status RunCheckpoints::CheckLimits(const OptimizerOptions& optimizer) const {
  if (!resumed_) return absl::OkStatus();
  const auto below = [this](const char* flag, int64_t value, const absl::AlphaNum& reached) {
    return BadFlag(flag, value,
                   absl::StrCat("the checkpoint '", resumed_->folder(), "' is after ", reached,
                                ": give at least so many, or --resume an earlier checkpoint"));
  };
  // A checkpoint of the last step is right: the run may have been killed before its export.
  if (*resumed_step_ > optimizer.steps)
    return below("steps", optimizer.steps, absl::StrCat("step ", *resumed_step_));
  const int64_t skipped = skips_.counted;
  if (optimizer.in_backward || skipped <= optimizer.max_skipped_steps) return absl::OkStatus();
  return below("max-skipped-steps", optimizer.max_skipped_steps,
               absl::StrCat(skipped, skipped == 1 ? " skipped step" : " skipped steps"));
}

absl::Status RunCheckpoints::Save(const TrainingState& training, int64_t step, const Skips& skips,
                                  std::map<std::string, std::string> files) {
  WEFT_RETURN_IF_ERROR(Finish());
  CheckpointState state = SavedState(training, step);
  state.counts[kSkippedSteps] = skips.all;
  state.counts[kCountedSkips] = skips.counted;
  state.properties = properties_;
  for (const RunProperty& property : noted_) state.properties[property.name] = property.value;
  state.files = std::move(files);
  state.parent = std::exchange(parent_, std::nullopt);
  WEFT_RETURN_IF_ERROR(saver_->Start(std::move(state)));
  return config_.async ? absl::OkStatus() : Finish();
}

absl::Status RunCheckpoints::Advance() {
  const int64_t step = saver_->saving_step();
  WEFT_ASSIGN_OR_RETURN(const bool ended, saver_->Advance());
  if (ended) SetSaved(step);
  return absl::OkStatus();
}

absl::Status RunCheckpoints::Finish() {
  if (!enabled() || !saver_->saving()) return absl::OkStatus();
  const int64_t step = saver_->saving_step();
  WEFT_RETURN_IF_ERROR(saver_->Finish());
  SetSaved(step);
  return absl::OkStatus();
}

void RunCheckpoints::SetSaved(int64_t step) {
  last_saved_ = absl::StrCat(config_.folder, "/", CheckpointName(step));
  saved_ = last_saved_;
}

}  // namespace weft
