#include "src/train/files/json_fields.h"

#include <cmath>
#include <optional>
#include <utility>

#include "src/train/files/json_text.h"

namespace weft {
namespace {

std::optional<int64_t> WholeNumber(const Json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX) return std::nullopt;
  return value.get<int64_t>();
}

double NumberOrNan(const Json& value) { return value.is_number() ? value.get<double>() : std::nan(""); }

bool IsPositiveFloat(double value) {
  return static_cast<float>(value) > 0 && std::isfinite(static_cast<float>(value));
}

}  // namespace

JsonFields::JsonFields(const Json& object, std::string place, std::string remedy)
    : JsonFields(object, std::make_shared<File>(File{std::move(place), std::move(remedy), {}})) {}

JsonFields::JsonFields(const Json& object, std::shared_ptr<File> file)
    : object_(object), file_(std::move(file)) {
  if (object_.is_discarded()) {
    FailData(absl::StrCat(file_->place, " is not JSON"));
  } else if (!object_.is_object()) {
    FailData(absl::StrCat(file_->place, " has ", Excerpt(JsonText(object_)), " where an object must be"));
  }
}

JsonFields JsonFields::Inner(const Json& object) { return JsonFields(object, file_); }

bool JsonFields::Has(const char* key) const {
  const auto found = object_.is_object() ? object_.find(key) : object_.end();
  return found != object_.end() && !found->is_null();
}

const Json& JsonFields::Value(const char* key) {
  static const Json kNull;
  if (Has(key)) return object_[key];
  FailData(
      absl::StrCat(Place(key), object_.is_object() && object_.contains(key) ? " is null" : " is missing"));
  return kNull;
}

int64_t JsonFields::Whole(const char* key, int64_t least, int64_t most) {
  return WholeOf(Value(key), key, least, most);
}

int64_t JsonFields::Whole(const char* key, int64_t least, int64_t most, int64_t fallback) {
  return Has(key) ? Whole(key, least, most) : fallback;
}

int64_t JsonFields::WholeOf(const Json& value, const char* key, int64_t least, int64_t most) {
  const std::optional<int64_t> number = WholeNumber(value);
  if (number && *number >= least && *number <= most) return *number;
  FailValue(value, key, absl::StrCat("it must be a whole number from ", least, " to ", most));
  return least;
}

uint64_t JsonFields::Unsigned(const char* key) {
  const Json& value = Value(key);
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  FailValue(value, key, "it must be a whole number that is not negative");
  return 0;
}

double JsonFields::Number(const char* key, double least, double most) {
  const Json& value = Value(key);
  const double number = NumberOrNan(value);
  if (number >= least && number <= most) return number;
  FailValue(value, key, absl::StrCat("it must be a number from ", least, " to ", most));
  return least;
}

double JsonFields::Number(const char* key, double least, double most, double fallback) {
  return Has(key) ? Number(key, least, most) : fallback;
}

double JsonFields::Positive(const char* key) {
  const Json& value = Value(key);
  const double number = NumberOrNan(value);
  if (IsPositiveFloat(number)) return number;
  FailValue(value, key, "it must be a positive number in the range of float");
  return 1;
}

double JsonFields::Positive(const char* key, double fallback) { return Has(key) ? Positive(key) : fallback; }

std::vector<float> JsonFields::PositiveList(const char* key, int64_t count) {
  std::vector<float> numbers;
  const Json& list = List(key);
  for (const Json& value : list) {
    const double number = NumberOrNan(value);
    if (IsPositiveFloat(number)) numbers.push_back(static_cast<float>(number));
  }
  if (static_cast<int64_t>(list.size()) == count && numbers.size() == list.size()) return numbers;
  FailValue(list, key,
            absl::StrCat("it must be a list of ", count, " positive numbers in the range of float"));
  return {};
}

bool JsonFields::Bool(const char* key) {
  const Json& value = Value(key);
  if (value.is_boolean()) return value.get<bool>();
  FailValue(value, key, "it must be true or false");
  return false;
}

bool JsonFields::Bool(const char* key, bool fallback) { return Has(key) ? Bool(key) : fallback; }

std::string JsonFields::Text(const char* key) {
  const Json& value = Value(key);
  if (value.is_string()) return value.get<std::string>();
  FailValue(value, key, "it must be a string");
  return "";
}

const Json& JsonFields::List(const char* key) {
  static const Json kEmpty = Json::array();
  const Json& value = Value(key);
  if (value.is_array()) return value;
  FailValue(value, key, "it must be a list");
  return kEmpty;
}

const Json& JsonFields::Object(const char* key) {
  static const Json kEmpty = Json::object();
  const Json& value = Value(key);
  if (value.is_object()) return value;
  FailValue(value, key, "it must be an object");
  return kEmpty;
}

void JsonFields::RequireOnly(const char* key, const Json& allowed) {
  if (!Has(key) || object_[key] == allowed) return;
  Fail(absl::UnimplementedError(absl::StrCat(Place(key), " is ", Excerpt(JsonText(object_[key])),
                                             "; weft supports only ",
                                             allowed.is_null() ? "models without it" : JsonText(allowed))));
}

void JsonFields::Fail(absl::Status status) { file_->first_error.Update(std::move(status)); }

std::string JsonFields::Place(const char* key) const { return absl::StrCat(file_->place, ": ", key); }

void JsonFields::FailValue(const Json& value, const char* key, const absl::AlphaNum& rule) {
  if (!status().ok()) return;
  FailData(absl::StrCat(Place(key), " is ", Excerpt(JsonText(value)), ", but ", rule));
}

void JsonFields::FailData(const absl::AlphaNum& what) {
  Fail(absl::DataLossError(absl::StrCat(what, file_->remedy.empty() ? "" : ": ", file_->remedy)));
}

}  // namespace weft
