#include "src/train/checkpoint/save_commit.h"

#include <cstddef>
#include <map>
#include <string_view>
#include <utility>

#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>

#include "src/train/checkpoint/file_range.h"
#include "src/train/checkpoint/manifest.h"
#include "src/train/checkpoint/save_messages.h"
#include "src/train/files/file_io.h"
#include "src/train/files/safetensors_header.h"
#include "weft/core/hash.h"
#include "weft/core/status.h"

namespace weft {
namespace {

// The ranges of a file whose whole content is in memory, with their hashes.
std::vector<FileRange> RangesOf(std::string_view content) {
  std::vector<FileRange> ranges;
  for (size_t begin = 0; begin < content.size(); begin += kMaxRangeSpan) {
    const std::string_view piece = content.substr(begin, kMaxRangeSpan);
    ranges.push_back({.offset = static_cast<int64_t>(begin),
                      .run_bytes = static_cast<int64_t>(piece.size()),
                      .hash = Hash64(piece)});
  }
  return ranges;
}

// OK if ranks have written each byte of a file once.
absl::Status CheckComplete(const CheckpointLayout::File& layout, const CheckpointManifest::File& file) {
  const absl::Status status = CheckCoverage(file.ranges, file.bytes);
  if (status.ok()) return absl::OkStatus();
  const char* remedy =
      absl::IsNotFound(status)
          ? "pass the shards of all ranks"
          : "ranks hold the same elements: set `replica` and `replicas`, or, if parameters have "
            "meshes of their own, pass the shards of the first replica only";
  return absl::InvalidArgumentError(
      absl::StrCat("the ranks' shards do not make up '", layout.name, "': ", status.message(), "; ", remedy));
}

// The manifest of the files with the parts of all ranks.
absl::StatusOr<CheckpointManifest> MergeParts(const CheckpointLayout& layout, const CheckpointState& state,
                                              const std::vector<std::string>& parts) {
  CheckpointManifest manifest;
  manifest.step = state.step;
  manifest.counts = state.counts;
  manifest.properties = state.properties;
  const std::vector<CheckpointLayout::File>& files = layout.files();
  std::vector<CheckpointManifest::File> merged;
  merged.reserve(files.size());
  for (const CheckpointLayout::File& file : files) {
    merged.push_back({file.stem, file.layout.file_bytes(), RangesOf(file.layout.header())});
  }
  for (const std::string& blob : parts) {
    WEFT_ASSIGN_OR_RETURN(RankPart part, DecodePart(blob, files.size()));
    for (size_t i = 0; i < files.size(); ++i) {
      merged[i].ranges.insert(merged[i].ranges.end(), part.ranges[i].begin(), part.ranges[i].end());
    }
    for (const auto& [name, count] : part.counts_of_parameters) {
      if (manifest.counts_of_parameters.emplace(name, count).first->second == count) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("ranks that hold '", name, "' have different counts for it"));
    }
  }
  for (size_t i = 0; i < files.size(); ++i) {
    WEFT_RETURN_IF_ERROR(CheckComplete(files[i], merged[i]));
    manifest.files[files[i].name] = std::move(merged[i]);
  }
  return manifest;
}

// The error of a save if readers of the checkpoint would end with `status`.
absl::Status RefusalOf(const absl::Status& status) {
  if (!absl::IsDataLoss(status)) return status;
  return absl::InvalidArgumentError(
      absl::StrCat("a reader would refuse the checkpoint, so it is not committed; the reader would report \"",
                   status.message(), "\""));
}

// Checks the header as a reader does, and flushes it: rank 0 has written it. Other bytes are flushed by their
// writers, who may be on other hosts; a file without elements has none.
absl::Status FinishHeader(const std::string& folder, const std::string& name) {
  WEFT_ASSIGN_OR_RETURN(File file, File::OpenForUpdate(absl::StrCat(folder, "/", name)));
  WEFT_RETURN_IF_ERROR(RefusalOf(ReadSafetensorsHeader(file, name).status()));
  return file.Close();
}

}  // namespace

absl::Status SaveCommit::FinishDataFiles() const {
  for (const CheckpointLayout::File& file : layout.files()) {
    WEFT_RETURN_IF_ERROR(FinishHeader(staged, file.name));
  }
  return absl::OkStatus();
}

// Writes the files that are not data, and the manifest.
absl::Status SaveCommit::WriteDescription(const std::vector<std::string>& parts) const {
  WEFT_ASSIGN_OR_RETURN(CheckpointManifest manifest, MergeParts(layout, state, parts));
  for (const auto* files : {&layout.indexes(), &state.files}) {
    for (const auto& [name, content] : *files) {
      if (!manifest.files
               .emplace(name,
                        CheckpointManifest::File{"", static_cast<int64_t>(content.size()), RangesOf(content)})
               .second) {
        return absl::InvalidArgumentError(absl::StrCat("the checkpoint has two files named '", name, "'"));
      }
      WEFT_RETURN_IF_ERROR(WriteWholeFile(absl::StrCat(staged, "/", name), content));
    }
  }
  const std::string text = FormatManifest(manifest);
  WEFT_RETURN_IF_ERROR(RefusalOf(ParseManifest(text, kManifestName).status()));
  return WriteWholeFile(absl::StrCat(staged, "/", kManifestName), text);
}

absl::Status SaveCommit::Run(const std::vector<std::string>& parts) const {
  absl::Status status = FinishDataFiles();
  if (status.ok()) status = WriteDescription(parts);
  if (!status.ok()) {
    CheckpointFolder::Discard(staged);
    return status;
  }
  return folder->Commit(staged, {state.step, state.parent, keep}, *abandoned);
}

}  // namespace weft
