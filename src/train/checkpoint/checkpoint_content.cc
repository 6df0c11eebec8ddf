#include "src/train/checkpoint/checkpoint_content.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include <absl/strings/str_cat.h>

#include "src/train/files/model_folder.h"
#include "src/train/files/safetensors_header.h"
#include "weft/core/hash.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr int64_t kHeaderLengthBytes = 8;

absl::Status WrongChecksum(const std::string& path, const FileRange& range) {
  return absl::DataLossError(absl::StrCat("'", path, "' does not have its checksum in bytes ", range.offset,
                                          " to ", range.end(), ": the checkpoint is damaged"));
}

}  // namespace

absl::Status Checkpoint::Content::CheckedFile::ReadRange(const FileRange& range, char* out,
                                                         std::vector<char>& span) const {
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

absl::Status Checkpoint::Content::CheckedFile::CopyTo(const File& copy) const {
  std::vector<char> bytes;
  std::vector<char> span;
  for (const FileRange& range : ranges) {
    bytes.resize(static_cast<size_t>(range.bytes()));
    WEFT_RETURN_IF_ERROR(ReadRange(range, bytes.data(), span));
    for (int64_t run = 0; run < range.runs; ++run) {
      WEFT_RETURN_IF_ERROR(copy.WriteAt(range.offset + run * range.stride,
                                        bytes.data() + run * range.run_bytes,
                                        static_cast<size_t>(range.run_bytes)));
    }
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::Content::OpenFile(const std::string& name, CheckpointManifest::File& described) {
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

absl::Status Checkpoint::Content::ReadArrays(const std::string& stem) {
  const size_t number = files.size() - 1;
  const CheckedFile& file = files[number];
  uint64_t header_bytes = 0;
  WEFT_RETURN_IF_ERROR(file.file.ReadAt(0, &header_bytes, sizeof(header_bytes)));
  WEFT_ASSIGN_OR_RETURN(const auto entries, ReadSafetensorsHeader(file.file, file.path));
  std::vector<char> checked(header_bytes + kHeaderLengthBytes);
  WEFT_RETURN_IF_ERROR(ReadBytes(number, 0, absl::MakeSpan(checked)));
  for (const auto& [name, entry] : entries) {
    if (arrays.emplace(std::pair(stem, name), Array{number, entry}).second) continue;
    return absl::DataLossError(absl::StrCat("'", file.path, "' has the array '", name, "' of another file"));
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::Content::ReadBytes(size_t number, int64_t begin, absl::Span<char> out) const {
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

absl::StatusOr<RangeCache::Bytes> Checkpoint::Content::Fetch(const RangeCache::Key& key) const {
  if (RangeCache::Bytes bytes = cache.Find(key)) return bytes;
  const CheckedFile& file = files[key.first];
  const FileRange& range = file.ranges[key.second];
  auto bytes = std::make_shared<std::vector<char>>(static_cast<size_t>(range.bytes()));
  std::vector<char> span;
  WEFT_RETURN_IF_ERROR(file.ReadRange(range, bytes->data(), span));
  cache.Insert(key, bytes);
  return RangeCache::Bytes(std::move(bytes));
}

}  // namespace weft
