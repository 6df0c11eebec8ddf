#include "src/train/checkpoint/manifest.h"

#include <optional>
#include <utility>

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>

#include "src/train/files/json.h"
#include "src/train/files/json_fields.h"
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

constexpr const char* kDamaged = "the checkpoint is damaged";

absl::Status Damaged(const std::string& path, const absl::AlphaNum& what) {
  return absl::DataLossError(absl::StrCat("'", path, "' ", what, ": ", kDamaged));
}

std::optional<uint64_t> ParseHash(const Json& value) {
  const std::string digits = value.is_string() ? value.get<std::string>() : "";
  uint64_t hash = 0;
  if (digits.size() != kHashDigits || !absl::SimpleHexAtoi(digits, &hash)) return std::nullopt;
  return hash;
}

// [offset, bytes, hash] or [offset, bytes of a run, runs, stride, hash].
FileRange ReadRange(const Json& range, JsonFields& file) {
  constexpr const char* kKey = "ranges";
  const bool has_one_run = range.is_array() && range.size() == 3;
  const bool has_runs = range.is_array() && range.size() == 5;
  const std::optional<uint64_t> hash = has_one_run || has_runs ? ParseHash(range.back()) : std::nullopt;
  if (!hash) {
    file.FailValue(kKey, "it must have lists of 3 or 5 values, the last of which is a checksum");
    return {};
  }
  const auto number = [&](size_t index) { return file.WholeOf(range[index], kKey, 0, INT64_MAX); };
  FileRange result{.offset = number(0), .run_bytes = number(1), .hash = *hash};
  if (has_runs) {
    result.runs = number(2);
    result.stride = number(3);
  }
  return result;
}

CheckpointManifest::File ReadFile(JsonFields json) {
  CheckpointManifest::File file;
  file.stem = json.Text("stem");
  file.bytes = json.Whole("bytes", 0, INT64_MAX);
  for (const Json& range : json.List("ranges")) {
    if (!json.status().ok()) break;
    file.ranges.push_back(ReadRange(range, json));
  }
  return file;
}

std::map<std::string, int64_t> ReadCounts(const char* key, JsonFields& json) {
  std::map<std::string, int64_t> counts;
  for (const auto& [name, value] : json.Object(key).items()) {
    counts[name] = json.WholeOf(value, key, INT64_MIN, INT64_MAX);
  }
  return counts;
}

bool IsInFolder(const std::string& name) {
  return !name.empty() && name.front() != '.' && !absl::StrContains(name, '/') &&
         !absl::StrContains(name, '\0');
}

absl::Status CheckFileName(const std::string& name) {
  // JsonText replaces what is not UTF-8.
  const bool is_text = ParseJson(JsonText(name)) == Json(name);
  if (is_text && IsInFolder(name) && name != kManifestName) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "CheckpointState::files has '", Excerpt(name),
      "', which is no name for a file of a checkpoint: give UTF-8 text without '/' that does not ",
      "begin with '.', and that is not ", kManifestName));
}

// `member`: that of CheckpointState.
template <typename Value>
absl::Status CheckTexts(const char* member, const std::map<std::string, Value>& values,
                        const char* remedy = "put long texts into CheckpointState::files") {
  for (const auto& [key, value] : values) {
    const absl::Status status = CheckJsonText(JsonText(Json::object({{key, value}})), kLimits);
    if (status.ok()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("CheckpointState::", member, ": '", Excerpt(key), "' ", status.message(), ": ", remedy));
  }
  return absl::OkStatus();
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

absl::Status CheckState(const CheckpointState& state) {
  if (state.step < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("CheckpointState::step is ", state.step, ": give 0 or more"));
  }
  for (const auto& [name, content] : state.files) WEFT_RETURN_IF_ERROR(CheckFileName(name));
  WEFT_RETURN_IF_ERROR(CheckTexts("counts", state.counts));
  WEFT_RETURN_IF_ERROR(CheckTexts("properties", state.properties));
  return CheckTexts("counts_of_parameters", state.counts_of_parameters, "shorten the name of the parameter");
}

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
  if (static_cast<int64_t>(text.size()) > kMaxManifestBytes)
    return Damaged(path, absl::StrCat("has more than ", kMaxManifestBytes, " bytes"));
  WEFT_ASSIGN_OR_RETURN(const absl::string_view hashed, CheckHash(ToAbsl(text), path));
  if (const absl::Status status = CheckJsonText(text, kLimits); !status.ok())
    return Damaged(path, status.message());
  const Json json = ParseJson(absl::StrCat(hashed, "}"));
  JsonFields fields(json, absl::StrCat("'", path, "'"), kDamaged);
  const int64_t format = fields.Whole("format", 0, INT64_MAX);
  if (format != kCheckpointFormat) {
    fields.Fail(absl::UnimplementedError(absl::StrCat("'", path, "' has format ", format,
                                                      ", but this version of weft reads ", kCheckpointFormat,
                                                      ": use the version that wrote it, or a newer one")));
  }
  WEFT_RETURN_IF_ERROR(fields.status());
  CheckpointManifest manifest;
  manifest.step = fields.Whole("step", 0, INT64_MAX);
  manifest.counts = ReadCounts("counts", fields);
  manifest.counts_of_parameters = ReadCounts("counts_of_parameters", fields);
  for (const auto& [name, value] : fields.Object("properties").items()) {
    if (!value.is_string()) fields.FailValue("properties", "its values must be strings");
    WEFT_RETURN_IF_ERROR(fields.status());
    manifest.properties[name] = value.get<std::string>();
  }
  for (const auto& [name, value] : fields.Object("files").items()) {
    WEFT_RETURN_IF_ERROR(fields.status());
    if (!IsInFolder(name)) {
      return Damaged(path, absl::StrCat("names the file '", Excerpt(name),
                                        "', which is not in the checkpoint's folder"));
    }
    manifest.files[name] = ReadFile(fields.Inner(value));
  }
  WEFT_RETURN_IF_ERROR(fields.status());
  for (const auto& [name, file] : manifest.files) {
    if (const absl::Status status = CheckCoverage(file.ranges, file.bytes); !status.ok()) {
      return Damaged(path, absl::StrCat("has wrong ranges for '", name, "': ", status.message()));
    }
  }
  return manifest;
}

}  // namespace weft
