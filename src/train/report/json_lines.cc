#include "src/train/report/json_lines.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include "src/train/files/file_io.h"
#include "src/train/files/json.h"
#include "src/train/files/json_text.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{1} << 32;
constexpr JsonLimits kLineLimits = {.levels = 8, .values = 10'000, .token_bytes = int64_t{1} << 16};

}  // namespace

absl::Status ReadJsonLines(const std::string& path, absl::FunctionRef<bool(std::string_view)> skip,
                           absl::FunctionRef<absl::Status(const Json&)> read) {
  WEFT_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, kMaxFileBytes));
  int64_t number = 0;
  for (const absl::string_view whole : absl::StrSplit(text, '\n')) {
    ++number;
    const std::string place = absl::StrCat("'", path, "', line ", number);
    const absl::string_view trimmed = absl::StripSuffix(absl::StripTrailingAsciiWhitespace(whole), ",");
    const std::string_view line(trimmed.data(), trimmed.size());
    const bool is_object = !line.empty() && line.front() == '{' && line.back() == '}';
    if (!is_object) {
      if (line.empty() || skip(line)) continue;
      return absl::DataLossError(absl::StrCat(place, ": '", Excerpt(line), "' is not one of weft's lines"));
    }
    WEFT_RETURN_IF_ERROR(Annotate(CheckJsonText(line, kLineLimits), place));
    const auto object = ParseJson(line);
    if (!object.is_object()) return absl::DataLossError(absl::StrCat(place, ": is not a JSON object"));
    WEFT_RETURN_IF_ERROR(Annotate(read(object), place));
  }
  return absl::OkStatus();
}

double NumberAt(const Json& object, const char* key, double fallback) {
  const auto value = object.find(key);
  return value != object.end() && value->is_number() ? value->get<double>() : fallback;
}

std::string TextAt(const Json& object, const char* key) {
  const auto value = object.find(key);
  return value != object.end() && value->is_string() ? value->get<std::string>() : "";
}

}  // namespace weft
