// Reader of the values of one JSON object of a model folder. Keeps the first error, which names path and key.
//
// Errors of values: kDataLoss; of values that weft does not support: kUnimplemented.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>

#include "src/train/files/json.h"
#include "src/train/files/json_text.h"

namespace weft {

// Limits of a configuration file of a model folder, above the needs of any model. They also bound the files
// of an export, which keep unknown keys.
inline constexpr int64_t kMaxConfigFileBytes = 1 << 20;
inline constexpr JsonLimits kConfigFileLimits = {
    .levels = 32, .values = 20'000, .token_bytes = kMaxConfigFileBytes};

// Checks and parses the text of such a file, which must be a JSON object. `kind`: the file in messages, as in
// "Hugging Face config.json".
absl::StatusOr<Json> ParseConfigFile(std::string_view text, const std::string& path, const char* kind);

class JsonFields {
 public:
  // Keeps a reference to the object.
  JsonFields(const Json& object, std::string path);

  // True if the key is there, and its value is not null.
  bool Has(const char* key) const;

  // A positive whole number.
  int64_t Size(const char* key, int64_t max);
  int64_t Size(const char* key, int64_t max, int64_t fallback);
  // A whole number, 0 included.
  int64_t Whole(const char* key, int64_t max, int64_t fallback);
  // A positive number in the range of float.
  double Positive(const char* key);
  double Positive(const char* key, double fallback);
  bool Bool(const char* key, bool fallback);
  // A list of `count` positive numbers. Empty after an error.
  std::vector<float> PositiveList(const char* key, int64_t count);

  // Fails if the key is present with another value than `allowed`.
  void RequireOnly(const char* key, const Json& allowed);

  void Fail(absl::Status status);
  void FailValue(const char* key, const absl::AlphaNum& rule);
  std::string Place(const char* key) const;
  const absl::Status& status() const { return status_; }

 private:
  const Json& object_;
  std::string path_;
  absl::Status status_;
};

}  // namespace weft
