// Reader of the values of JSON objects.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include "src/train/files/json.h"

namespace weft {

// Reads one object, and remembers the first error, which names place, key and value. What is read after an
// error is within the limits that its reader asks for. A key whose value is null counts as missing.
//
// Errors: kDataLoss for values that are missing or wrong; kUnimplemented for values that weft does not
// support.
class JsonFields {
 public:
  // Keeps a reference to the object. Another value than an object is an error. `place`: the file in messages,
  // as in "'config.json'". `remedy`: the end of messages about missing and wrong values; may be empty.
  JsonFields(const Json& object, std::string place, std::string remedy = "");
  JsonFields(const Json&& object, std::string place, std::string remedy = "") = delete;

  // Reader of an object inside this one. Both have the same first error.
  JsonFields Inner(const Json& object);
  JsonFields Inner(const char* key) { return Inner(Object(key)); }

  bool Has(const char* key) const;
  // The value at the key. Without one: an error, and null.
  const Json& Value(const char* key);

  // A whole number from `least` to `most`.
  int64_t Whole(const char* key, int64_t least, int64_t most);
  int64_t Whole(const char* key, int64_t least, int64_t most, int64_t fallback);
  // The same for `value`, which is inside the value at the key.
  int64_t WholeOf(const Json& value, const char* key, int64_t least, int64_t most);
  uint64_t Unsigned(const char* key);

  // A number from `least` to `most`.
  double Number(const char* key, double least, double most);
  double Number(const char* key, double least, double most, double fallback);
  // A positive number in the range of float.
  double Positive(const char* key);
  double Positive(const char* key, double fallback);
  // A list of `count` of them. Empty after an error.
  std::vector<float> PositiveList(const char* key, int64_t count);

  bool Bool(const char* key);
  bool Bool(const char* key, bool fallback);
  std::string Text(const char* key);
  // The one of `values` whose Name is the text at the key.
  template <typename Enum>
  Enum OneOf(const char* key, std::initializer_list<Enum> values);
  // A list, or an object. Empty after an error.
  const Json& List(const char* key);
  const Json& Object(const char* key);

  // Fails if the key is present with another value than `allowed`.
  void RequireOnly(const char* key, const Json& allowed);

  void Fail(absl::Status status);
  // `rule`: what the value at the key breaks, as in "it must be even".
  void FailValue(const char* key, const absl::AlphaNum& rule) { FailValue(Value(key), key, rule); }
  std::string Place(const char* key) const;
  const absl::Status& status() const { return file_->first_error; }

 private:
  struct File {
    std::string place, remedy;
    absl::Status first_error;
  };

  JsonFields(const Json& object, std::shared_ptr<File> file);

  void FailValue(const Json& value, const char* key, const absl::AlphaNum& rule);
  // A kDataLoss error that ends with the remedy.
  void FailData(const absl::AlphaNum& what);

  const Json& object_;
  std::shared_ptr<File> file_;
};

template <typename Enum>
Enum JsonFields::OneOf(const char* key, std::initializer_list<Enum> values) {
  const std::string text = Text(key);
  std::string names;
  for (const Enum value : values) {
    if (text == Name(value)) return value;
    if (!names.empty()) names += ", ";
    names += Name(value);
  }
  FailValue(key, absl::StrCat("it must be one of ", names));
  return *values.begin();
}

}  // namespace weft
