#include "src/train/files/json_text.h"

#include <absl/strings/str_cat.h>

#include "weft/core/control_characters.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr size_t kExcerptBytes = 80;

absl::Status TooMuch(int64_t limit, const char* what) {
  return absl::DataLossError(absl::StrCat("has more than ", limit, " ", what));
}

// Scanner that counts levels, values and token bytes of JSON text.
class Scan {
 public:
  explicit Scan(const JsonLimits& limits) : limits_(limits) {}

  absl::Status Add(char byte) {
    if (byte == '\0') return absl::DataLossError("has a NUL byte");
    if (in_string_) return AddToString(byte);
    switch (byte) {
      case '"':
        in_string_ = true;
        token_bytes_ = 0;
        return absl::OkStatus();
      case '[':
      case '{':
        if (++levels_ > limits_.levels) return TooMuch(limits_.levels, "levels of arrays and objects");
        return AddValue();
      case ']':
      case '}':
        --levels_;
        token_bytes_ = 0;
        return absl::OkStatus();
      case ',':
        return AddValue();
      default:
        return AddToToken();
    }
  }

 private:
  absl::Status AddToString(char byte) {
    if (!escaped_ && byte == '"') {
      in_string_ = false;
      return absl::OkStatus();
    }
    escaped_ = !escaped_ && byte == '\\';
    return AddToToken();
  }
  absl::Status AddToToken() {
    return ++token_bytes_ > limits_.token_bytes
               ? TooMuch(limits_.token_bytes, "bytes in one string or number")
               : absl::OkStatus();
  }
  // A value follows each comma, and each bracket that opens.
  absl::Status AddValue() {
    token_bytes_ = 0;
    return ++values_ > limits_.values ? TooMuch(limits_.values, "values") : absl::OkStatus();
  }

  JsonLimits limits_;
  bool in_string_ = false;
  bool escaped_ = false;
  int64_t levels_ = 0;
  int64_t values_ = 0;
  int64_t token_bytes_ = 0;
};

}  // namespace

absl::Status CheckJsonText(std::string_view text, const JsonLimits& limits) {
  Scan scan(limits);
  for (const char byte : text) {
    WEFT_RETURN_IF_ERROR(scan.Add(byte));
  }
  return absl::OkStatus();
}

std::string Excerpt(std::string_view text) {
  std::string excerpt;
  for (const char byte : text) {
    const auto code = static_cast<unsigned char>(byte);
    // Cuts before the first byte of a character, which is never a continuation byte of UTF-8.
    if (excerpt.size() >= kExcerptBytes && (code & 0xC0U) != 0x80U) return excerpt + "…";
    if (IsControlCharacter(byte)) {
      excerpt += HexEscape(byte);
    } else {
      excerpt.push_back(byte);
    }
    if (excerpt.size() >= 2 * kExcerptBytes) return excerpt + "…";  // Not UTF-8.
  }
  return excerpt;
}

}  // namespace weft
