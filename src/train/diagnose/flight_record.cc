// Files of flight recorders.
#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <system_error>
#include <utility>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "src/train/files/file_io.h"
#include "src/train/files/json.h"
#include "src/train/files/json_text.h"
#include "weft/core/status.h"
#include "weft/train/diagnose.h"

namespace weft {
namespace {

constexpr uint64_t kMaxRanks = uint64_t{1} << 20;
// Upper limit of a file, above that of an engine with a thousand lanes of a thousand ranks.
constexpr int64_t kMaxFileBytes = int64_t{1} << 28;
constexpr JsonLimits kLimits{/*levels=*/8, /*values=*/int64_t{1} << 20, /*token_bytes=*/int64_t{1} << 16};

// Reader of the fields of an object. Keeps the first error.
class Fields {
 public:
  Fields(const Json& object, const std::string& path) : object_(object), path_(path) {
    if (!object.is_object()) status_ = Fault("object of JSON");
  }

  std::string Text(const char* name) {
    const Json* value = Find(name, "a string", [](const Json& v) { return v.is_string(); });
    return value == nullptr ? "" : value->get<std::string>();
  }
  uint64_t Unsigned(const char* name) {
    const Json* value =
        Find(name, "a number that is not negative", [](const Json& v) { return v.is_number_unsigned(); });
    return value == nullptr ? 0 : value->get<uint64_t>();
  }
  int64_t Integer(const char* name) {
    const Json* value = Find(name, "a whole number", [](const Json& v) { return v.is_number_integer(); });
    return value == nullptr ? 0 : value->get<int64_t>();
  }
  const Json& Array(const char* name) {
    static const Json kNone = Json::array();
    const Json* value = Find(name, "an array", [](const Json& v) { return v.is_array(); });
    return value == nullptr ? kNone : *value;
  }
  int Rank(const char* name, int min) {
    const uint64_t value = Unsigned(name);
    if (status_.ok() && (value > kMaxRanks || static_cast<int>(value) < min)) status_ = Fault(name);
    return status_.ok() ? static_cast<int>(value) : 0;
  }
  const absl::Status& status() const { return status_; }
  absl::Status Fault(std::string_view what) const {
    return absl::DataLossError(
        absl::StrCat("'", path_, "' is not a flight recorder of weft: it has no valid ", ToAbsl(what)));
  }

 private:
  template <typename Is>
  const Json* Find(const char* name, const char* kind, const Is& is) {
    if (!status_.ok()) return nullptr;
    const auto found = object_.find(name);
    if (found != object_.end() && is(*found)) return &*found;
    status_ = Fault(absl::StrCat("'", name, "', which must be ", kind));
    return nullptr;
  }
  const Json& object_;
  const std::string& path_;
  absl::Status status_;
};

absl::StatusOr<FlightRecord::Lane> ParseLane(const Json& json, const std::string& path) {
  Fields fields(json, path);
  FlightRecord::Lane lane;
  lane.name = fields.Text("lane");
  lane.index = fields.Unsigned("lane_index");
  lane.submitted = fields.Unsigned("submitted");
  for (const Json& rank : fields.Array("ranks")) {
    if (!rank.is_number_unsigned() || rank.get<uint64_t>() > kMaxRanks) return fields.Fault("'ranks'");
    lane.ranks.push_back(rank.get<int>());
  }
  WEFT_RETURN_IF_ERROR(fields.status());
  return lane;
}

absl::StatusOr<FlightRecord::Operation> ParseOperation(const Json& json, const std::string& path) {
  Fields fields(json, path);
  FlightRecord::Operation operation;
  operation.lane = fields.Text("lane");
  operation.lane_index = fields.Unsigned("lane_index");
  operation.sequence = fields.Unsigned("sequence");
  operation.generation = fields.Unsigned("generation");
  operation.label = fields.Text("label");
  operation.description = fields.Text("description");
  operation.counts_hash = fields.Unsigned("counts_hash");
  operation.ended = fields.Integer("ready_ns") != 0;
  operation.submitted_ns = fields.Integer("submitted_ns");
  operation.waiting_for = fields.Text("waiting_for");
  WEFT_RETURN_IF_ERROR(fields.status());
  return operation;
}

bool IsRecordName(const std::filesystem::path& path) {
  const std::string name = path.filename();
  return absl::StartsWith(name, "rank-") && absl::EndsWith(name, ".json");
}

absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::is_directory(path, error)) return std::vector<std::string>{path};
  std::vector<std::string> files;
  fs::directory_iterator entry(path, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (IsRecordName(entry->path())) files.push_back(entry->path());
  }
  if (error) return ErrnoStatus(error.value(), "read the folder", path);
  if (files.empty())
    return absl::NotFoundError(absl::StrCat("'", path, "' has no flight recorder (rank-<N>.json)"));
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

absl::StatusOr<FlightRecord> ParseFlightRecord(std::string_view text, const std::string& path) {
  WEFT_RETURN_IF_ERROR(Annotate(CheckJsonText(text, kLimits), absl::StrCat("'", path, "'")));
  const Json json = ParseJson(text);
  Fields fields(json, path);
  const uint64_t format = fields.Unsigned("format");
  WEFT_RETURN_IF_ERROR(fields.status());
  if (format != 1) {
    return absl::DataLossError(absl::StrCat("'", path, "' has format ", format,
                                            ", but this version reads format 1: use the weft that wrote it"));
  }
  FlightRecord record;
  record.ranks = fields.Rank("ranks", 1);
  record.rank = fields.Rank("rank", 0);
  record.phase = fields.Text("phase");
  record.failure = fields.Text("failure");
  for (const Json& lane : fields.Array("lanes")) {
    WEFT_ASSIGN_OR_RETURN(FlightRecord::Lane parsed, ParseLane(lane, path));
    record.lanes.push_back(std::move(parsed));
  }
  for (const Json& operation : fields.Array("operations")) {
    WEFT_ASSIGN_OR_RETURN(FlightRecord::Operation parsed, ParseOperation(operation, path));
    record.operations.push_back(std::move(parsed));
  }
  WEFT_RETURN_IF_ERROR(fields.status());
  if (record.rank >= record.ranks) return fields.Fault("'rank'");
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
