#include "src/train/config/json_fields.h"

#include <cmath>
#include <utility>

#include "weft/core/status.h"

namespace weft {

absl::StatusOr<Json> ParseConfigFile(std::string_view text, const std::string& path, const char* kind) {
  if (text.size() > kMaxConfigFileBytes) {
    return absl::DataLossError(absl::StrCat("'", path, "' has ", text.size(), " bytes, but at most ",
                                            kMaxConfigFileBytes, " are allowed: is it a ", kind, "?"));
  }
  if (const absl::Status status = CheckJsonText(text, kConfigFileLimits); !status.ok()) {
    return Annotate(status, absl::StrCat("'", path, "'"));
  }
  Json json = ParseJson(text);
  if (json.is_object()) return json;
  return absl::DataLossError(absl::StrCat("'", path, "' is not a JSON object: is it a ", kind, "?"));
}

JsonFields::JsonFields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {}

bool JsonFields::Has(const char* key) const { return object_.contains(key) && !object_[key].is_null(); }

int64_t JsonFields::Size(const char* key, int64_t max) {
  if (!Has(key)) {
    Fail(absl::DataLossError(absl::StrCat(Place(key), " is missing")));
    return 1;
  }
  const Json& value = object_[key];
  if (!value.is_number_unsigned() || value.get<uint64_t>() == 0) {
    FailValue(key, "it must be a positive whole number");
    return 1;
  }
  if (value.get<uint64_t>() > static_cast<uint64_t>(max)) {
    FailValue(key, absl::StrCat("it can be at most ", max));
    return 1;
  }
  return value.get<int64_t>();
}

int64_t JsonFields::Size(const char* key, int64_t max, int64_t fallback) {
  return Has(key) ? Size(key, max) : fallback;
}

int64_t JsonFields::Whole(const char* key, int64_t max, int64_t fallback) {
  const bool is_zero = Has(key) && object_[key] == 0;
  return is_zero ? 0 : Size(key, max, fallback);
}

double JsonFields::Positive(const char* key) {
  if (!Has(key)) {
    Fail(absl::DataLossError(absl::StrCat(Place(key), " is missing")));
    return 1;
  }
  const double value = object_[key].is_number() ? object_[key].get<double>() : std::nan("");
  // All of these values become floats.
  if (!(static_cast<float>(value) > 0) || !std::isfinite(static_cast<float>(value))) {
    FailValue(key, "it must be a positive number in the range of float");
    return 1;
  }
  return value;
}

double JsonFields::Positive(const char* key, double fallback) { return Has(key) ? Positive(key) : fallback; }

bool JsonFields::Bool(const char* key, bool fallback) {
  if (!Has(key)) return fallback;
  if (!object_[key].is_boolean()) {
    FailValue(key, "it must be true or false");
    return fallback;
  }
  return object_[key].get<bool>();
}

std::vector<float> JsonFields::PositiveList(const char* key, int64_t count) {
  std::vector<float> values;
  if (!Has(key) || !object_[key].is_array() || static_cast<int64_t>(object_[key].size()) != count) {
    Fail(absl::DataLossError(absl::StrCat(Place(key), " must be a list of ", count, " numbers")));
    return values;
  }
  for (const Json& value : object_[key]) {
    const float number = value.is_number() ? static_cast<float>(value.get<double>()) : 0.0F;
    if (!(number > 0) || !std::isfinite(number)) {
      FailValue(key, "its numbers must be positive and in the range of float");
      return {};
    }
    values.push_back(number);
  }
  return values;
}

void JsonFields::RequireOnly(const char* key, const Json& allowed) {
  if (Has(key) && object_[key] != allowed) {
    Fail(absl::UnimplementedError(absl::StrCat(Place(key), " is ", Excerpt(JsonText(object_[key])),
                                               "; weft supports only ",
                                               allowed.is_null() ? "models without it" : JsonText(allowed))));
  }
}

void JsonFields::Fail(absl::Status status) {
  if (status_.ok()) {
    status_ = std::move(status);
  }
}

void JsonFields::FailValue(const char* key, const absl::AlphaNum& rule) {
  Fail(
      absl::DataLossError(absl::StrCat(Place(key), " is ", Excerpt(JsonText(object_[key])), ", but ", rule)));
}

std::string JsonFields::Place(const char* key) const { return absl::StrCat("'", path_, "': ", key); }

}  // namespace weft
