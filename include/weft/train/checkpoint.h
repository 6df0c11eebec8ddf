// Checkpoints of a sharded run: saving by all ranks together, and loading onto any mesh.
//
// A checkpoint is a folder:
//
//   step-00000200/
//     checkpoint.json               step, counts, properties, and checksums of all ranges of all files
//     model.safetensors             whole fp32 tensors, in Hugging Face's layout: any tool reads them. Large
//                                   models: model-00001-of-00002.safetensors, …, and an index
//     optimizer.safetensors         the optimizer's moments in the same layout
//     indexer.safetensors           of sparse attention: the indexers' weights,
//     indexer_optimizer.safetensors and their moments; the model's files have neither
//     config.json, …                small files that the caller adds
//
// The folder of all checkpoints of a run also has `latest`, a text file with the names of the checkpoints,
// newest first. They are in the order of their saves: see CheckpointState::parent.
//
// Note [Ranges of a checkpoint]
// Every rank writes its own elements straight to their place in the files. The files depend on names and
// shapes only, so any mesh reads the checkpoint of any other. checkpoint.json has the XXH3 hash of each range
// as it was written, in pieces of at most 4 MiB. A reader checks the hash of every range that it touches.
//
// Note [Commit of a checkpoint]
// Problem: a run may be killed at any instant of a save.
// Rule: files are written to a hidden folder `.saving-…`, and flushed to the device. Then the folder is
//   renamed, and after that `latest` replaced. Each is one system call.
//   A state that a reader would refuse is not committed.
//   A checkpoint of the same step is exchanged with the new one. File systems without exchanges, as NFS, give
//   it a hidden name first; the next run restores it if the new one has not taken its place.
// Why it suffices: a folder that is named step-… is complete. `latest` names an older one until the new one
//   is on the device. The next run removes hidden folders, if it holds the lock of the folder.
// Without it: a torn checkpoint replaces a good one.
//
// Note [Saving while training goes on]
// Shards change only in the optimizer's update. After Start a thread of each rank writes them to the files,
// straight from the memory of the shards. BeforeUpdate copies the ranges that are not written yet, up to a
// limit of memory, and waits until the others are written.
//
//   WEFT_ASSIGN_OR_RETURN(auto saver, CheckpointSaver::Open(bootstrap, "checkpoints", {}));
//   ...
//   CheckpointState state{.step = step, .arrays = {{"model", "", model->Shards()},
//                                                  {"optimizer", ".exp_avg", optimizer.FirstMoments()},
//                                                  {"optimizer", ".exp_avg_sq", optimizer.SecondMoments()}}};
//   WEFT_RETURN_IF_ERROR(saver->Start(std::move(state)));
//   WEFT_RETURN_IF_ERROR(saver->Finish());
//
//   WEFT_ASSIGN_OR_RETURN(const Checkpoint checkpoint,
//                         Checkpoint::OpenOnAllRanks(bootstrap, "checkpoints/step-00000200", timeout));
//   FullyShard(net, net.units(), mesh, engine, policy, checkpoint.Loader("model"));
//   FillShards(optimizer.FirstMoments(), checkpoint.Loader("optimizer", ".exp_avg"));
//   FillShards(optimizer.SecondMoments(), checkpoint.Loader("optimizer", ".exp_avg_sq"));
//   optimizer.set_steps(checkpoint.step());
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/time/time.h>
#include <absl/types/span.h>

#include "weft/mesh/bootstrap.h"
#include "weft/sharding/shard_view.h"

namespace weft {

// Arrays that are parallel to parameters: weights, or one of the optimizer's moments.
struct CheckpointArrays {
  std::string file;    // Stem of the files: "model" or "optimizer".
  std::string suffix;  // Appended to the names of the parameters, as in ".exp_avg".
  // This rank's elements. All ranks together have every element; those of replicas may be the same.
  std::vector<ShardView> shards;
};

// The state that one rank saves.
struct CheckpointState {
  int64_t step = 0;  // At least 0.
  // Step of the checkpoint in the saver's folder from which this run resumed. Checkpoints that were saved
  // after it belong to an abandoned branch: they count as older, and are removed first. Only rank 0's value
  // counts. A program that resumes sets it for its first save; later saves follow the last one.
  std::optional<int64_t> parent = std::nullopt;
  // A tensor has at most 16 dims and, as JSON, a name of at most 1,000,000 bytes. A file has at most 200,000
  // tensors.
  std::vector<CheckpointArrays> arrays;
  // Values for the caller, which a loader does not interpret. Equal on all ranks. As JSON, a key or a value
  // has at most 1 MiB.
  std::map<std::string, int64_t> counts;
  std::map<std::string, std::string> properties;
  // Counts by parameter, of the parameters that the rank holds, such as numbers of updates. Ranks that hold
  // parts of one parameter must agree.
  std::map<std::string, int64_t> counts_of_parameters;
  // Small files by name, written by rank 0, such as config.json. A name is UTF-8 text without '/', does not
  // begin with '.', and is not checkpoint.json.
  std::map<std::string, std::string> files;
};

struct CheckpointOptions {
  int64_t keep = 3;  // Newest checkpoints to keep; 0: all.
  // Largest size of a data file. A larger tensor has a file of its own.
  int64_t max_file_bytes = int64_t{4} << 30;
  // Memory of a rank for copies of ranges that an update would overwrite before they are written.
  int64_t snapshot_bytes = int64_t{256} << 20;
  // Ranks that hold the same elements share the writing: this rank is number `replica` of `replicas`.
  int replica = 0;
  int replicas = 1;
  // Limit of each wait for other ranks or the device. Unset: the environment's WEFT_TIMEOUT_S
  // (DefaultTimeout).
  std::optional<absl::Duration> timeout = std::nullopt;
};

// Saver of checkpoints into one folder, which it locks against other runs if the file system has locks.
//
// Thread safety: none; one thread of each rank drives it.
// Collective: Open, Start, Advance and Finish, by all ranks in one order.
// Lifetime: the bootstrap must outlive it. Shards of a save must not move or change until BeforeUpdate or
//   Finish has returned OK, or the destructor has returned. The destructor waits for the device for at most
//   five seconds: a write that hangs longer may still read the shards, into a file that is removed.
class CheckpointSaver {
 public:
  // Creates the folder if it does not exist. Removes the remains of saves that were killed, if it
  // holds the lock. The folder, replicas and max_file_bytes must be alike on all ranks.
  // Errors: kInvalidArgument (another run has the folder, it is or lies in the place of a checkpoint, an
  //   option is out of range, or ranks differ: names both values), kNotFound (also if ranks do not share the
  //   folder), kPermissionDenied, kResourceExhausted, kUnavailable, kDataLoss (names the path). All ranks
  //   return the same.
  static absl::StatusOr<std::unique_ptr<CheckpointSaver>> Open(Bootstrap& bootstrap,
                                                               const std::string& folder,
                                                               const CheckpointOptions& options);
  // Ends a save that is under way, and removes its files. A commit that has begun may still end.
  ~CheckpointSaver();
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  // On rank 0: the remains of killed saves that Open removed.
  const std::vector<std::string>& removed() const;
  // On rank 0, since the last call: warnings about remains of killed saves and old checkpoints that could not
  // be removed. Each names the path, the reason and the remedy. Each save tries again to remove them, without
  // another warning.
  std::vector<std::string> TakeWarnings();
  // Checks that a checkpoint of `bytes` fits on the disk. Errors: kResourceExhausted (needed and free bytes).
  absl::Status CheckSpace(int64_t bytes) const;

  // Begins to save. Errors, the same on all ranks: kFailedPrecondition (a save is under way: call Finish
  // first; that save goes on), kInvalidArgument (two arrays of one name, or a step, a name, a text, a tensor
  // or a number of tensors that CheckpointState does not allow: names it, and gives the limit), and those of
  // the system.
  absl::Status Start(CheckpointState state);
  // True while a save is under way.
  bool saving() const;
  // The step of that save, or of the last one.
  int64_t saving_step() const;
  // Call it before each update of this rank's shards: see Note [Saving while training goes on]. Not
  // collective.
  // Errors: kDeadlineExceeded (the device does not take the data; names the file).
  absl::Status BeforeUpdate();
  // True if this rank has done its part of the current phase of a save. At the end of a step the caller
  // compares this across ranks, and calls Advance if it is true on all of them. False without a save.
  bool CanAdvance() const;
  // Enters the next phase of the save: from writing to the commit by rank 0, or from the commit to the end.
  // Returns true if the save has ended. REQUIRES: CanAdvance on all ranks.
  // Errors: kFailedPrecondition (no save is under way), kInvalidArgument (elements that no rank or two ranks
  //   hold, two files of one name, or a checkpoint that its reader would refuse), and those of the system on
  //   any rank, such as kResourceExhausted (no thread; names the limits); then the save has ended, and its
  //   files are removed.
  absl::StatusOr<bool> Advance();
  // Waits until the save under way has ended, if there is one. Errors: as Advance.
  absl::Status Finish();

 private:
  class Impl;
  explicit CheckpointSaver(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A committed checkpoint.
//
// Thread safety: const members may be called from several threads.
class Checkpoint {
 public:
  // Reads checkpoint.json and the headers of all files, and checks their checksums and the sizes of all
  // files, but not the data. `folder`: that of one checkpoint.
  // Errors: kNotFound, kPermissionDenied, kUnavailable (a read failed), kDataLoss (names the file and what is
  //   wrong), kInvalidArgument (the folder has the name of another step; gives the right one),
  //   kUnimplemented (written in a newer format).
  static absl::StatusOr<Checkpoint> Open(const std::string& folder);
  // Opens the same checkpoint on all ranks. The path of its folder may differ between hosts.
  // Collective: all ranks. Errors: those of Open, of the lowest rank that has one; kDataLoss (the ranks have
  //   different checkpoints; names the paths, steps and checksums of two of them).
  static absl::StatusOr<Checkpoint> OpenOnAllRanks(Bootstrap& bootstrap, const std::string& folder,
                                                   absl::Duration timeout);

  const std::string& folder() const;
  int64_t step() const;
  const std::map<std::string, int64_t>& counts() const;
  const std::map<std::string, std::string>& properties() const;
  const std::map<std::string, int64_t>& counts_of_parameters() const;
  int64_t bytes() const;  // Total size of all files.

  // Checks that the checkpoint has an array of this name and shape. Errors: kNotFound, kDataLoss.
  absl::Status Check(std::string_view file, const std::string& name, const Shape& shape) const;
  // Reads elements [first, first + out.size()) of an array in row-major order, and checks the checksums of
  // all ranges that they lie in. REQUIRES: Check has passed, and the range lies in the array.
  // Errors: kUnavailable (the read failed), kDataLoss (names file, range and array).
  absl::Status Read(std::string_view file, const std::string& name, int64_t first,
                    absl::Span<float> out) const;
  // Loader of the arrays "<parameter><suffix>" of one file stem, with Check and Read. The loader shares the
  // checkpoint's state.
  ShardLoader Loader(std::string_view file, std::string_view suffix = "") const;
  // Reads part `part` of `parts` of all files and checks every checksum in it. Errors: kUnavailable (a
  // read failed), kDataLoss.
  absl::Status Verify(int part = 0, int parts = 1) const;
  // Writes a Hugging Face folder: the weights ("model" and "indexer") and all files that are not arrays, such
  // as config.json. Checks the checksum of each range. The files take the place of an earlier export
  // together.
  // Errors: kInvalidArgument (another run writes there, or it is a checkpoint, its place, or a folder of
  //   checkpoints), kDataLoss, kUnavailable, kNotFound, kPermissionDenied, kResourceExhausted.
  absl::Status ExportHf(const std::string& folder) const;

 private:
  struct Content;
  explicit Checkpoint(std::shared_ptr<const Content> content);
  std::shared_ptr<const Content> content_;
};

// "step-00000200", the name of a checkpoint's folder.
std::string CheckpointName(int64_t step);

// Names of the checkpoints in a folder, newest first: those that `latest` lists, then the others by
// descending step. Empty if the folder does not exist. Errors: those of the system.
absl::StatusOr<std::vector<std::string>> ListCheckpoints(const std::string& folder);

// A checkpoint that a search did not choose.
struct SkippedCheckpoint {
  std::string path;
  absl::Status reason;
};

// Returns the path of the newest usable checkpoint of a folder, after a check of all its checksums, which the
// ranks share. An empty path means that the folder has no checkpoint. Sets `skipped` to the newer checkpoints
// that are damaged, or that some rank does not have.
// Collective: all ranks. Errors: kDataLoss (there are checkpoints, but none is usable; names each), and those
//   of Checkpoint::OpenOnAllRanks for a checkpoint that may be whole (another format, the name of another
//   step, no permission, no memory, a failed read).
absl::StatusOr<std::string> FindCheckpoint(Bootstrap& bootstrap, const std::string& folder,
                                           std::vector<SkippedCheckpoint>& skipped, absl::Duration timeout);

}  // namespace weft
