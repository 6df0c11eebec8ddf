#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "src/train/checkpoint/manifest.h"
#include "src/train/checkpoint/range_cache.h"
#include "src/train/files/file_io.h"
#include "src/train/files/model_folder.h"
#include "src/train/files/safetensors_header.h"
#include "weft/core/hash.h"
#include "weft/core/status.h"
#include "weft/train/checkpoint.h"
#include "weft/train/safetensors.h"

namespace weft {
namespace {

constexpr int64_t kMaxManifestBytes = int64_t{1} << 30;
constexpr int64_t kHeaderLengthBytes = 8;

absl::Status WrongChecksum(const std::string& path, const FileRange& range) {
  return absl::DataLossError(absl::StrCat("'", path, "' does not have its checksum in bytes ", range.offset,
                                          " to ", range.end(), ": the checkpoint is damaged"));
}

}  // namespace

struct Checkpoint::Content {
  // A file of the checkpoint. Its ranges are sorted by offset.
  struct CheckedFile {
    std::string path;
    File file;
    std::vector<FileRange> ranges;

    // Reads the runs of a range end to end into `out`, and checks them. `span`: scratch.
    absl::Status ReadRange(const FileRange& range, char* out, std::vector<char>& span) const {
      if (range.runs == 1) {
        WEFT_RETURN_IF_ERROR(file.ReadAt(range.offset, out, static_cast<size_t>(range.run_bytes)));
      } else {
        span.resize(static_cast<size_t>(range.span()));
        WEFT_RETURN_IF_ERROR(file.ReadAt(range.offset, span.data(), span.size()));
        for (int64_t run = 0; run < range.runs; ++run) {
          std::memcpy(out + run * range.run_bytes, span.data() + run * range.stride,
                      static_cast<size_t>(range.run_bytes));
        }
      }
      const bool right = Hash64(out, static_cast<size_t>(range.bytes())) == range.hash;
      return right ? absl::OkStatus() : WrongChecksum(path, range);
    }
  };
  struct Array {
    size_t file;  // Index in `files`.
    SafetensorsEntry entry;
  };

  std::string folder;
  CheckpointManifest manifest;  // Its ranges have moved to `files`.
  std::vector<CheckedFile> files;
  std::map<std::pair<std::string, std::string>, Array> arrays;  // By stem and name.
  mutable RangeCache cache;

  absl::Status OpenFile(const std::string& name, CheckpointManifest::File& described) {
    const std::string path = absl::StrCat(folder, "/", name);
    WEFT_ASSIGN_OR_RETURN(File file, OpenModelFile(folder, name));
    WEFT_ASSIGN_OR_RETURN(const int64_t bytes, file.Size());
    if (bytes != described.bytes) {
      return absl::DataLossError(absl::StrCat("'", path, "' has ", bytes, " bytes, but it was saved with ",
                                              described.bytes, ": the checkpoint is damaged"));
    }
    std::sort(described.ranges.begin(), described.ranges.end(),
              [](const FileRange& a, const FileRange& b) { return a.offset < b.offset; });
    files.push_back({path, std::move(file), std::move(described.ranges)});
    return described.stem.empty() ? absl::OkStatus() : ReadArrays(described.stem);
  }

  // Checks and reads the header of the last file.
  absl::Status ReadArrays(const std::string& stem) {
    const size_t number = files.size() - 1;
    const CheckedFile& file = files[number];
    uint64_t header_bytes = 0;
    WEFT_RETURN_IF_ERROR(file.file.ReadAt(0, &header_bytes, sizeof(header_bytes)));
    WEFT_ASSIGN_OR_RETURN(const auto entries, ReadSafetensorsHeader(file.file, file.path));
    std::vector<char> checked(header_bytes + kHeaderLengthBytes);
    WEFT_RETURN_IF_ERROR(ReadBytes(number, 0, absl::MakeSpan(checked)));
    for (const auto& [name, entry] : entries) {
      if (arrays.emplace(std::pair(stem, name), Array{number, entry}).second) continue;
      return absl::DataLossError(
          absl::StrCat("'", file.path, "' has the array '", name, "' of another file"));
    }
    return absl::OkStatus();
  }

  // Reads bytes [begin, begin + out.size()) of a file, and checks all ranges in which they lie.
  absl::Status ReadBytes(size_t number, int64_t begin, absl::Span<char> out) const {
    const CheckedFile& file = files[number];
    const int64_t end = begin + static_cast<int64_t>(out.size());
    // No range is longer than kMaxRangeSpan.
    auto range = std::lower_bound(file.ranges.begin(), file.ranges.end(), begin - kMaxRangeSpan,
                                  [](const FileRange& r, int64_t offset) { return r.offset < offset; });
    for (; range != file.ranges.end() && range->offset < end; ++range) {
      if (range->end() <= begin) continue;
      if (range->runs == 1 && range->offset >= begin && range->end() <= end) {
        std::vector<char> unused;
        WEFT_RETURN_IF_ERROR(file.ReadRange(*range, out.data() + (range->offset - begin), unused));
        continue;
      }
      WEFT_ASSIGN_OR_RETURN(const RangeCache::Bytes bytes,
                            Fetch({number, static_cast<size_t>(range - file.ranges.begin())}));
      ForEachOverlap(*range, begin, end, [&](int64_t at, int64_t from, int64_t count) {
        std::memcpy(out.data() + (at - begin), bytes->data() + from, static_cast<size_t>(count));
      });
    }
    return absl::OkStatus();
  }

  absl::StatusOr<RangeCache::Bytes> Fetch(const RangeCache::Key& key) const {
    if (RangeCache::Bytes bytes = cache.Find(key)) return bytes;
    const CheckedFile& file = files[key.first];
    const FileRange& range = file.ranges[key.second];
    auto bytes = std::make_shared<std::vector<char>>(static_cast<size_t>(range.bytes()));
    std::vector<char> span;
    WEFT_RETURN_IF_ERROR(file.ReadRange(range, bytes->data(), span));
    cache.Insert(key, bytes);
    return RangeCache::Bytes(std::move(bytes));
  }
};

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& folder) {
  auto content = std::make_shared<Content>();
  content->folder = folder;
  absl::StatusOr<std::string> text = ReadModelFile(folder, kManifestName, kMaxManifestBytes);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(absl::StrCat("'", folder, "' is not a checkpoint: it has no ", kManifestName));
  }
  WEFT_RETURN_IF_ERROR(text.status());
  WEFT_ASSIGN_OR_RETURN(content->manifest, ParseManifest(*text, absl::StrCat(folder, "/", kManifestName)));
  for (auto& [name, file] : content->manifest.files) WEFT_RETURN_IF_ERROR(content->OpenFile(name, file));
  return Checkpoint(std::move(content));
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

absl::StatusOr<std::string> FindCheckpoint(Bootstrap& bootstrap, const std::string& folder,
                                           std::vector<SkippedCheckpoint>& skipped, absl::Duration timeout) {
  // Rank 0's list counts: folders of hosts may differ for a moment.
  absl::StatusOr<std::vector<std::string>> names = std::vector<std::string>();
  if (bootstrap.rank() == 0) names = ListCheckpoints(folder);
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, names.status(), timeout));
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> lists,
                        bootstrap.AllGatherBlob(absl::StrJoin(*names, "\n"), timeout));
  for (absl::string_view rest = lists[0]; !rest.empty();) {
    const absl::string_view name = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
    const std::string path = absl::StrCat(folder, "/", name);
    const auto check = [&]() -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(path));
      return checkpoint.Verify(bootstrap.rank(), bootstrap.size());
    };
    const absl::Status status = AgreeOnStatus(bootstrap, check(), timeout);
    if (status.ok()) return path;
    if (!IsAgreedError(status)) return status;
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
