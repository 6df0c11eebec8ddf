// Files of flight recorders.
#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "src/train/files/file_io.h"
#include "src/train/files/json.h"
#include "src/train/files/json_fields.h"
#include "src/train/files/json_text.h"
#include "weft/core/status.h"
#include "weft/train/diagnose.h"

namespace weft {
namespace {

constexpr uint64_t kFormat = 2;
constexpr int64_t kMaxRanks = 1 << 20;
// Upper limit of a file, above that of an engine with a thousand lanes of a thousand ranks.
constexpr int64_t kMaxFileBytes = int64_t{1} << 28;
constexpr JsonLimits kLimits{/*levels=*/8, /*values=*/int64_t{1} << 20, /*token_bytes=*/int64_t{1} << 16};

std::vector<int> ReadRanks(JsonFields& json, const char* key) {
  std::vector<int> ranks;
  for (const Json& rank : json.List(key)) {
    ranks.push_back(static_cast<int>(json.WholeOf(rank, key, 0, kMaxRanks)));
  }
  return ranks;
}

FlightRecord::Lane ReadLane(JsonFields json) {
  FlightRecord::Lane lane;
  lane.name = json.Text("lane");
  lane.index = json.Unsigned("lane_index");
  lane.submitted = json.Unsigned("submitted");
  lane.ranks = ReadRanks(json, "ranks");
  return lane;
}

FlightRecord::Operation ReadOperation(JsonFields json) {
  FlightRecord::Operation operation;
  operation.lane = json.Text("lane");
  operation.lane_index = json.Unsigned("lane_index");
  operation.sequence = json.Unsigned("sequence");
  operation.generation = json.Unsigned("generation");
  operation.label = json.Text("label");
  operation.description = json.Text("description");
  operation.counts_hash = json.Unsigned("counts_hash");
  operation.ended = json.Whole("ready_ns", INT64_MIN, INT64_MAX) != 0;
  operation.submitted_ns = json.Whole("submitted_ns", INT64_MIN, INT64_MAX);
  operation.waiting_for = json.Text("waiting_for");
  operation.waits_for = ReadRanks(json, "waits_for");
  return operation;
}

bool IsRecordName(const std::filesystem::path& path, std::string_view suffix) {
  const std::string name = path.filename();
  return absl::StartsWith(name, "rank-") && name.ends_with(suffix);
}

absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::is_directory(path, error)) return std::vector<std::string>{path};
  std::vector<std::string> files;
  bool has_old = false;
  fs::directory_iterator entry(path, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (IsRecordName(entry->path(), ".json")) files.push_back(entry->path());
    has_old = has_old || IsRecordName(entry->path(), ".json.old");
  }
  if (error) return ErrnoStatus(error.value(), "read the folder", path);
  if (files.empty()) {
    return absl::NotFoundError(
        absl::StrCat("'", path, "' has no flight recorder (rank-<N>.json)",
                     has_old ? ", but those of an earlier run: give the files rank-<N>.json.old" : ""));
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

absl::StatusOr<FlightRecord> ParseFlightRecord(std::string_view text, const std::string& path) {
  const std::string place = absl::StrCat("'", path, "'");
  WEFT_RETURN_IF_ERROR(Annotate(CheckJsonText(text, kLimits), place));
  const Json json = ParseJson(text);
  JsonFields fields(json, place, "is it a flight recorder of weft?");
  const uint64_t format = fields.Unsigned("format");
  if (format != kFormat) {
    fields.Fail(
        absl::DataLossError(absl::StrCat(place, " has format ", format, ", but this version reads format ",
                                         kFormat, ": use the weft that wrote it")));
  }
  FlightRecord record;
  record.ranks = static_cast<int>(fields.Whole("ranks", 1, kMaxRanks));
  record.rank = static_cast<int>(fields.Whole("rank", 0, record.ranks - 1));
  record.generation = fields.Unsigned("generation");
  record.phase = fields.Text("phase");
  record.failure = fields.Text("failure");
  record.silent = ReadRanks(fields, "silent");
  record.late = ReadRanks(fields, "late");
  record.waits_for = ReadRanks(fields, "waits_for");
  for (const Json& lane : fields.List("lanes")) {
    WEFT_RETURN_IF_ERROR(fields.status());
    record.lanes.push_back(ReadLane(fields.Inner(lane)));
  }
  for (const Json& operation : fields.List("operations")) {
    WEFT_RETURN_IF_ERROR(fields.status());
    record.operations.push_back(ReadOperation(fields.Inner(operation)));
  }
  WEFT_RETURN_IF_ERROR(fields.status());
  return record;
}

absl::StatusOr<std::vector<FlightRecord>> ReadFlightRecords(absl::Span<const std::string> paths) {
  std::vector<FlightRecord> records;
  for (const std::string& path : paths) {
    WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> files, FilesOf(path));
    for (const std::string& file : files) {
      WEFT_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(file, kMaxFileBytes));
      WEFT_ASSIGN_OR_RETURN(FlightRecord record, ParseFlightRecord(text, file));
      records.push_back(std::move(record));
    }
  }
  return records;
}

}  // namespace weft
