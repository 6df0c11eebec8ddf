#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "src/train/checkpoint/checkpoint_content.h"
#include "src/train/checkpoint/checkpoint_folder.h"
#include "src/train/files/model_folder.h"
#include "src/train/files/output_folder.h"
#include "weft/core/hash.h"
#include "weft/core/status.h"

namespace weft {
namespace {

// True for the files of a model folder: weights and their index, and files without arrays.
bool BelongsToModelFolder(const std::string& name, const std::string& stem) {
  if (!stem.empty()) return stem == kModelFiles || stem == kIndexerFiles || stem == kAdapterFiles;
  return !absl::EndsWith(name, ".safetensors.index.json") || IsWeightsFile(name);
}

// The file by which readers find the weights.
std::string WeightsName(const std::vector<std::string>& names) {
  for (const char* name : {kWeightsIndex, kWeightsFile}) {
    if (std::find(names.begin(), names.end(), name) != names.end()) return name;
  }
  return "adapter_model.safetensors";  // A run with adapters saves them alone.
}

// A checkpoint as other ranks see it: the hash of its manifest, and its description for a message.
struct Identity {
  std::string hash;
  std::string description;
};

std::string Encode(const Identity& identity) {
  return absl::StrCat(identity.hash, " ", identity.description);
}

Identity DecodeIdentity(const std::string& blob) {
  const size_t end = blob.find(' ');
  return {blob.substr(0, end), blob.substr(end + 1)};
}

// Hosts may mount one folder at different places, so that paths alone may differ.
absl::Status CheckSame(const std::vector<std::string>& blobs) {
  const Identity first = DecodeIdentity(blobs[0]);
  for (size_t rank = 1; rank < blobs.size(); ++rank) {
    const Identity other = DecodeIdentity(blobs[rank]);
    if (other.hash == first.hash) continue;
    return absl::DataLossError(
        absl::StrCat("the ranks have different checkpoints: rank 0 has ", first.description, ", and rank ",
                     rank, " has ", other.description,
                     ": put the checkpoints on a file system that all ranks share, and name one of them"));
  }
  return absl::OkStatus();
}

// A name that is not that of a checkpoint is right for any step.
absl::Status CheckName(const std::string& folder, int64_t step) {
  std::filesystem::path path = std::filesystem::path(folder).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // "checkpoints/step-00000200/"
  const std::string name = CheckpointName(step);
  if (!IsCheckpointName(path.filename()) || path.filename() == name) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", path.native(), "' holds step ", step, ": rename it to ", name, ", or remove it"));
}

}  // namespace

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& folder) {
  auto content = std::make_shared<Content>();
  content->folder = folder;
  absl::StatusOr<std::string> text = ReadModelFile(folder, kManifestName, kMaxManifestBytes);
  if (absl::IsNotFound(text.status())) {
    std::error_code error;
    const bool exists = std::filesystem::exists(folder, error);
    return absl::NotFoundError(absl::StrCat(
        "'", folder, "' is not a checkpoint: ",
        exists ? absl::StrCat("it has no ", kManifestName) : std::string("there is no such folder")));
  }
  WEFT_RETURN_IF_ERROR(text.status());
  WEFT_ASSIGN_OR_RETURN(content->manifest, ParseManifest(*text, absl::StrCat(folder, "/", kManifestName)));
  content->manifest_hash = Hash64(*text);
  WEFT_RETURN_IF_ERROR(CheckName(folder, content->manifest.step));
  for (auto& [name, file] : content->manifest.files) WEFT_RETURN_IF_ERROR(content->OpenFile(name, file));
  return Checkpoint(std::move(content));
}

absl::StatusOr<Checkpoint> Checkpoint::OpenOnAllRanks(Bootstrap& bootstrap, const std::string& folder,
                                                      absl::Duration timeout) {
  absl::StatusOr<Checkpoint> checkpoint = Open(folder);
  const auto identity = [&]() -> absl::StatusOr<std::string> {
    WEFT_RETURN_IF_ERROR(checkpoint.status());
    const std::string hash = HashText(checkpoint->content_->manifest_hash);
    return Encode(
        {hash, absl::StrCat("'", folder, "', after step ", checkpoint->step(), " (checksum ", hash, ")")});
  };
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> identities,
                        ExchangeBlobs(bootstrap, "checkpoint", identity(), timeout));
  WEFT_RETURN_IF_ERROR(CheckSame(identities));
  return checkpoint;
}

Checkpoint::Checkpoint(std::shared_ptr<const Content> content) : content_(std::move(content)) {}

const std::string& Checkpoint::folder() const { return content_->folder; }
int64_t Checkpoint::step() const { return content_->manifest.step; }
const std::map<std::string, int64_t>& Checkpoint::counts() const { return content_->manifest.counts; }
const std::map<std::string, std::string>& Checkpoint::properties() const {
  return content_->manifest.properties;
}
const std::map<std::string, int64_t>& Checkpoint::counts_of_parameters() const {
  return content_->manifest.counts_of_parameters;
}

int64_t Checkpoint::bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, file] : content_->manifest.files) bytes += file.bytes;
  return bytes;
}

absl::Status Checkpoint::Check(std::string_view file, const std::string& name, const Shape& shape) const {
  const auto found = content_->arrays.find({std::string(file), name});
  if (found == content_->arrays.end()) {
    return absl::NotFoundError(absl::StrCat("the checkpoint '", content_->folder, "' has no array '", name,
                                            "' in '", ToAbsl(file), "'"));
  }
  const SafetensorsEntry& entry = found->second.entry;
  if (entry.dtype != "F32" || entry.shape != shape) {
    return absl::DataLossError(absl::StrCat(
        "'", entry.file, "' has '", name, "' as ", entry.dtype, " of shape ", ToString(entry.shape),
        ", but the model has F32 of shape ", ToString(shape), ": it is a checkpoint of another model"));
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::Read(std::string_view file, const std::string& name, int64_t first,
                              absl::Span<float> out) const {
  const auto found = content_->arrays.find({std::string(file), name});
  WEFT_CHECK(found != content_->arrays.end(), "read of an array that was not checked");
  const SafetensorsEntry& entry = found->second.entry;
  const auto bytes = static_cast<int64_t>(out.size() * sizeof(float));
  const auto offset = first * static_cast<int64_t>(sizeof(float));
  WEFT_CHECK(first >= 0 && offset + bytes <= entry.bytes, "read past the end of an array");
  const absl::Status status =
      content_->ReadBytes(found->second.file, entry.offset + offset,
                          {reinterpret_cast<char*>(out.data()), static_cast<size_t>(bytes)});
  return status.ok() ? status : Annotate(status, absl::StrCat("array '", name, "'"));
}

ShardLoader Checkpoint::Loader(std::string_view file, std::string_view suffix) const {
  return [checkpoint = *this, file = std::string(file), suffix = std::string(suffix)](
             const Parameter& parameter, int64_t start, int64_t count, float* out) -> absl::Status {
    const std::string name = parameter.name + suffix;
    WEFT_RETURN_IF_ERROR(checkpoint.Check(file, name, parameter.shape));
    return checkpoint.Read(file, name, start, {out, static_cast<size_t>(count)});
  };
}

absl::Status Checkpoint::Verify(int part, int parts) const {
  int64_t number = 0;
  std::vector<char> bytes;
  std::vector<char> span;
  for (const Content::CheckedFile& file : content_->files) {
    for (const FileRange& range : file.ranges) {
      if (number++ % parts != part) continue;
      bytes.resize(static_cast<size_t>(range.bytes()));
      WEFT_RETURN_IF_ERROR(file.ReadRange(range, bytes.data(), span));
    }
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::ExportHf(const std::string& folder) const {
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFolder> output, OutputFolder::Claim(folder));
  std::error_code error;
  if (std::filesystem::equivalent(output->path(), content_->folder, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", folder, "' is the checkpoint itself: name another folder"));
  }
  WEFT_RETURN_IF_ERROR(CheckIsNoCheckpoint(folder));
  const std::filesystem::path target = std::filesystem::weakly_canonical(output->path(), error);
  if (IsCheckpointName(target.filename()) &&
      std::filesystem::equivalent(target.parent_path(), content_->folder + "/..", error)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", folder, "' is the place of a checkpoint: name another folder"));
  }
  std::vector<std::string> names;
  FileSizes sizes;
  for (const auto& [name, file] : content_->manifest.files) {
    if (!BelongsToModelFolder(name, file.stem)) continue;
    names.push_back(name);
    sizes.Add(file.bytes);
  }
  const std::string weights = WeightsName(names);
  const bool has_adapters = absl::StartsWith(weights, kAdapterFiles);
  WEFT_RETURN_IF_ERROR(has_adapters ? CheckHasNoModel(folder) : CheckHasNoAdapters(folder));
  WEFT_RETURN_IF_ERROR(output->CheckSpace("the export", sizes));
  WEFT_ASSIGN_OR_RETURN(const std::string staging, output->Stage());
  size_t number = 0;
  for (const auto& [name, file] : content_->manifest.files) {
    const Content::CheckedFile& source = content_->files[number++];
    if (!BelongsToModelFolder(name, file.stem)) continue;
    WEFT_ASSIGN_OR_RETURN(File copy, File::CreateNew(absl::StrCat(staging, "/", name)));
    WEFT_RETURN_IF_ERROR(source.CopyTo(copy));
    WEFT_RETURN_IF_ERROR(copy.Close());
  }
  return output->Commit(weights, IsWeightsFile);
}

absl::StatusOr<std::string> FindCheckpoint(Bootstrap& bootstrap, const std::string& folder,
                                           std::vector<SkippedCheckpoint>& skipped, absl::Duration timeout) {
  // All ranks use the list of rank 0, because a network file system may show hosts different lists for a
  // moment.
  const auto list = [&]() -> absl::StatusOr<std::string> {
    WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListCheckpoints(folder));
    return absl::StrJoin(names, "\n");
  };
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> lists,
                        ExchangeBlobs(bootstrap, "names of checkpoints",
                                      bootstrap.rank() == 0 ? list() : std::string(), timeout));
  for (absl::string_view rest = lists[0]; !rest.empty();) {
    const absl::string_view name = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
    const std::string path = absl::StrCat(folder, "/", name);
    // Each rank verifies a part, so that all must have the same checkpoint.
    const auto check = [&]() -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                            Checkpoint::OpenOnAllRanks(bootstrap, path, timeout));
      return AgreeOnStatus(bootstrap, checkpoint.Verify(bootstrap.rank(), bootstrap.size()), timeout);
    };
    const absl::Status status = check();
    if (status.ok()) return path;
    if (!IsAgreedError(status)) return status;
    // The run would remove a newer checkpoint that it has passed over.
    if (!absl::IsNotFound(status) && !absl::IsDataLoss(status))
      return Annotate(status,
                      absl::StrCat("cannot use '", path,
                                   "', which may be whole; mend the cause, or name another checkpoint"));
    skipped.push_back({path, status});
  }
  if (skipped.empty()) return std::string();
  return absl::DataLossError(
      absl::StrCat("'", folder, "' has checkpoints, but none is usable: ",
                   absl::StrJoin(skipped, "; ", [](std::string* out, const SkippedCheckpoint& checkpoint) {
                     absl::StrAppend(out, checkpoint.reason.message());
                   })));
}

}  // namespace weft
