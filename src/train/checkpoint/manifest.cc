#include "src/train/checkpoint/manifest.h"

#include <algorithm>
#include <utility>

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>

#include "src/train/files/json.h"
#include "src/train/files/json_text.h"
#include "weft/core/hash.h"
#include "weft/core/status.h"

namespace weft {
namespace {

// Between the hashed text and the hash.
constexpr absl::string_view kHashKey = ",\n\"checksum\": \"";
constexpr absl::string_view kTail = "\"}\n";
constexpr size_t kHashDigits = 16;
constexpr JsonLimits kLimits = {.levels = 8, .values = 32 << 20, .token_bytes = 1 << 20};

absl::Status Damaged(const std::string& path, const absl::AlphaNum& what) {
  return absl::DataLossError(absl::StrCat("'", path, "' ", what, ": the checkpoint is damaged"));
}

// Reads the values of a manifest. Remembers the first fault.
class ManifestReader {
 public:
  bool failed() const { return !fault_.empty(); }
  const std::string& fault() const { return fault_; }

  const Json& Member(const Json& object, const char* key) {
    static const Json kNull;
    const auto found = object.is_object() ? object.find(key) : object.end();
    if (found != object.end()) return *found;
    Fail(absl::StrCat("has no '", key, "'"));
    return kNull;
  }
  int64_t Count(const Json& value, const char* what) {
    if (value.is_number_integer() && (!value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX)) {
      return value.get<int64_t>();
    }
    Fail(absl::StrCat("has a ", what, " that is not a whole number"));
    return 0;
  }
  std::string Text(const Json& value, const char* what) {
    if (value.is_string()) return value.get<std::string>();
    Fail(absl::StrCat("has a ", what, " that is not a text"));
    return "";
  }
  uint64_t Hash(const Json& value) {
    const std::string digits = Text(value, "checksum");
    uint64_t hash = 0;
    if (digits.size() != kHashDigits || !absl::SimpleHexAtoi(digits, &hash)) {
      Fail("has a checksum that is not 16 hexadecimal digits");
    }
    return hash;
  }
  // A file of the checkpoint's own folder.
  std::string FileName(const std::string& name) {
    if (name.empty() || name.front() == '.' || absl::StrContains(name, '/') ||
        absl::StrContains(name, '\0')) {
      Fail(absl::StrCat("names the file '", Excerpt(name), "', which is not in the checkpoint's folder"));
    }
    return name;
  }
  // [offset, bytes, hash] or [offset, bytes of a run, runs, stride, hash].
  FileRange Range(const Json& value) {
    if (!value.is_array() || (value.size() != 3 && value.size() != 5)) {
      Fail("has a range that is not a list of 3 or 5 values");
      return {};
    }
    FileRange range{.offset = Count(value[0], "range"),
                    .run_bytes = Count(value[1], "range"),
                    .hash = Hash(value.back())};
    if (value.size() == 5) {
      range.runs = Count(value[2], "range");
      range.stride = Count(value[3], "range");
    }
    return range;
  }

 private:
  void Fail(std::string fault) {
    if (fault_.empty()) fault_ = std::move(fault);
  }
  std::string fault_;
};

CheckpointManifest::File ReadFile(const Json& value, ManifestReader& reader) {
  CheckpointManifest::File file;
  file.stem = reader.Text(reader.Member(value, "stem"), "stem");
  file.bytes = reader.Count(reader.Member(value, "bytes"), "size");
  for (const Json& range : reader.Member(value, "ranges")) file.ranges.push_back(reader.Range(range));
  return file;
}

std::map<std::string, int64_t> ReadCounts(const Json& values, ManifestReader& reader) {
  std::map<std::string, int64_t> counts;
  for (const auto& [name, value] : values.items()) counts[name] = reader.Count(value, "count");
  return counts;
}

// The text up to the hash. Errors: kDataLoss.
absl::StatusOr<absl::string_view> CheckHash(absl::string_view text, const std::string& path) {
  const size_t tail = kHashKey.size() + kHashDigits + kTail.size();
  uint64_t hash = 0;
  if (text.size() < tail || !absl::ConsumeSuffix(&text, kTail) ||
      !absl::SimpleHexAtoi(text.substr(text.size() - kHashDigits), &hash)) {
    return Damaged(path, "does not end with a checksum");
  }
  text.remove_suffix(kHashDigits);
  if (!absl::ConsumeSuffix(&text, kHashKey)) return Damaged(path, "does not end with a checksum");
  if (Hash64(text.data(), text.size()) != hash)
    return Damaged(path, "does not have the checksum that it names");
  return text;
}

}  // namespace

std::string FormatManifest(const CheckpointManifest& manifest) {
  Json files = Json::object();
  for (const auto& [name, file] : manifest.files) {
    Json ranges = Json::array();
    for (const FileRange& range : file.ranges) {
      if (range.runs == 1) {
        ranges.push_back({range.offset, range.run_bytes, HashText(range.hash)});
      } else {
        ranges.push_back({range.offset, range.run_bytes, range.runs, range.stride, HashText(range.hash)});
      }
    }
    files[name] = {{"stem", file.stem}, {"bytes", file.bytes}, {"ranges", std::move(ranges)}};
  }
  const Json json = {{"format", kCheckpointFormat},
                     {"step", manifest.step},
                     {"counts", Json(manifest.counts)},
                     {"properties", Json(manifest.properties)},
                     {"counts_of_parameters", Json(manifest.counts_of_parameters)},
                     {"files", std::move(files)}};
  // Values from the command line need not be UTF-8.
  std::string text = JsonText(json);
  text.pop_back();  // The closing brace.
  return absl::StrCat(text, kHashKey, HashText(Hash64(text)), kTail);
}

absl::StatusOr<CheckpointManifest> ParseManifest(std::string_view text, const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(const absl::string_view hashed, CheckHash(ToAbsl(text), path));
  if (const absl::Status status = CheckJsonText(text, kLimits); !status.ok())
    return Damaged(path, status.message());
  const Json json = ParseJson(absl::StrCat(hashed, "}"));
  if (!json.is_object()) return Damaged(path, "is not a JSON object");
  ManifestReader reader;
  const int64_t format = reader.Count(reader.Member(json, "format"), "format");
  if (!reader.failed() && format != kCheckpointFormat) {
    return absl::UnimplementedError(absl::StrCat("'", path, "' has format ", format,
                                                 ", but this version of weft reads ", kCheckpointFormat,
                                                 ": use the version that wrote it, or a newer one"));
  }
  CheckpointManifest manifest;
  manifest.step = reader.Count(reader.Member(json, "step"), "step");
  manifest.counts = ReadCounts(reader.Member(json, "counts"), reader);
  manifest.counts_of_parameters = ReadCounts(reader.Member(json, "counts_of_parameters"), reader);
  for (const auto& [name, value] : reader.Member(json, "properties").items()) {
    manifest.properties[name] = reader.Text(value, "property");
  }
  for (const auto& [name, value] : reader.Member(json, "files").items()) {
    manifest.files[reader.FileName(name)] = ReadFile(value, reader);
  }
  if (!reader.failed() && manifest.step < 0) return Damaged(path, "has a negative step");
  if (reader.failed()) return Damaged(path, reader.fault());
  for (const auto& [name, file] : manifest.files) {
    if (const absl::Status status = CheckCoverage(file.ranges, file.bytes); !status.ok()) {
      return Damaged(path, absl::StrCat("has wrong ranges for '", name, "': ", status.message()));
    }
  }
  return manifest;
}

}  // namespace weft
