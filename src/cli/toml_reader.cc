#include "src/cli/toml_reader.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <absl/algorithm/container.h>
#include <absl/status/status.h>
#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>

#include "weft/core/status.h"

namespace weft {
namespace {

bool IsKeyCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_';
}

// Characters that end a value without quotes.
bool EndsWord(char c) { return std::string_view(" \t\r\n,[]{}#=\"'").find(c) != std::string_view::npos; }

class TomlReader {
 public:
  // Some editors put a byte-order mark in front of the text.
  explicit TomlReader(std::string_view text) : text_(text) {
    constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
    if (text_.starts_with(kByteOrderMark)) text_.remove_prefix(kByteOrderMark.size());
  }

  absl::StatusOr<std::vector<TomlItem>> Read() {
    std::vector<TomlItem> items;
    for (SkipBlankLines(); !AtEnd(); SkipBlankLines()) {
      WEFT_ASSIGN_OR_RETURN(TomlItem item, ReadItem());
      items.push_back(std::move(item));
    }
    return items;
  }

 private:
  bool AtEnd() const { return next_ == text_.size(); }
  char Peek() const { return AtEnd() ? '\n' : text_[next_]; }
  bool Take(char wanted) {
    if (AtEnd() || text_[next_] != wanted) return false;
    Advance();
    return true;
  }
  char Advance() {
    const char c = text_[next_++];
    line_ += c == '\n' ? 1 : 0;
    return c;
  }
  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("line ", line_, ": ", what));
  }

  void SkipSpaces() {
    while (!AtEnd() && (Peek() == ' ' || Peek() == '\t' || Peek() == '\r')) Advance();
  }
  void SkipComment() {
    if (Peek() != '#') return;
    while (!AtEnd() && Peek() != '\n') Advance();
  }
  void SkipBlankLines() {
    do {
      SkipSpaces();
      SkipComment();
    } while (Take('\n'));
  }

  absl::StatusOr<TomlItem> ReadItem() {
    if (Peek() == '[') return Error("sections are not supported, write all keys at the top");
    TomlItem item;
    item.line = line_;
    WEFT_ASSIGN_OR_RETURN(item.key, ReadKey());
    SkipSpaces();
    if (!Take('=')) return Error(absl::StrCat("'=' and a value must follow the key '", item.key, "'"));
    SkipSpaces();
    item.is_list = Take('[');
    if (item.is_list) {
      WEFT_ASSIGN_OR_RETURN(item.values, ReadList());
    } else {
      WEFT_ASSIGN_OR_RETURN(std::string value, ReadValue());
      item.values.push_back(std::move(value));
    }
    SkipSpaces();
    SkipComment();
    if (!AtEnd() && !Take('\n')) {
      return Error(absl::StrCat("a line break must follow the value of '", item.key, "'"));
    }
    return item;
  }

  absl::StatusOr<std::string> ReadKey() {
    std::string key;
    if (Peek() == '"' || Peek() == '\'') {
      WEFT_ASSIGN_OR_RETURN(key, ReadValue());
    } else {
      while (!AtEnd() && IsKeyCharacter(Peek())) key += Advance();
    }
    if (key.empty()) return Error("a key must stand here, as in: steps = 100");
    return key;
  }

  absl::StatusOr<std::vector<std::string>> ReadList() {
    std::vector<std::string> values;
    for (SkipBlankLines(); !Take(']'); SkipBlankLines()) {
      WEFT_ASSIGN_OR_RETURN(std::string value, ReadValue());
      values.push_back(std::move(value));
      SkipBlankLines();
      if (!Take(',') && Peek() != ']') return Error("a comma or ']' must follow a value of a list");
    }
    return values;
  }

  absl::StatusOr<std::string> ReadValue() {
    if (Peek() == '"' || Peek() == '\'') return ReadString(Advance());
    std::string word;
    while (!AtEnd() && !EndsWord(Peek())) word += Advance();
    if (word.empty()) return Error("a value must stand here: a number, true, false, or text in quotes");
    return word;
  }

  // The rest of a string after its first quote.
  absl::StatusOr<std::string> ReadString(char quote) {
    std::string value;
    while (!Take(quote)) {
      if (AtEnd() || Peek() == '\n')
        return Error(absl::StrCat("a closing ", std::string(1, quote), " is missing"));
      if (std::iscntrl(static_cast<unsigned char>(Peek())) != 0 && Peek() != '\t') {
        return Error("a string has a control character");
      }
      if (quote == '"' && Take('\\')) {
        WEFT_ASSIGN_OR_RETURN(const std::string escaped, ReadEscape());
        value += escaped;
      } else {
        value += Advance();
      }
    }
    if (value.empty() && Peek() == quote) return Error("strings of several lines are not supported");
    return value;
  }

  absl::StatusOr<std::string> ReadEscape() {
    constexpr std::pair<char, char> kEscapes[] = {{'"', '"'},  {'\\', '\\'}, {'b', '\b'}, {'t', '\t'},
                                                  {'n', '\n'}, {'f', '\f'},  {'r', '\r'}};
    for (const auto& [letter, meaning] : kEscapes) {
      if (Take(letter)) return std::string(1, meaning);
    }
    if (Take('u')) return ReadCodePoint();
    return Error(
        "the only escapes are \\\\, \\\", \\b, \\t, \\n, \\f, \\r and \\uXXXX; text in single quotes has "
        "none");
  }

  // The UTF-8 text of the code point whose digits follow.
  absl::StatusOr<std::string> ReadCodePoint() {
    constexpr size_t kDigits = 4;
    const absl::string_view digits(text_.data() + next_, std::min(kDigits, text_.size() - next_));
    uint32_t code = 0;
    const bool is_number = digits.size() == kDigits && absl::c_all_of(digits, absl::ascii_isxdigit) &&
                           absl::SimpleHexAtoi(digits, &code);
    const bool is_surrogate = code >= 0xD800 && code < 0xE000;
    if (!is_number || code == 0 || is_surrogate) {
      return Error(
          "the four hexadecimal digits of a character must follow \\u, which 0000 and the surrogates D800 to "
          "DFFF are not");
    }
    next_ += kDigits;
    std::string text;
    if (code < 0x80) return std::string(1, static_cast<char>(code));
    if (code < 0x800) {
      text += static_cast<char>(0xC0 | (code >> 6));
    } else {
      text += static_cast<char>(0xE0 | (code >> 12));
      text += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    }
    text += static_cast<char>(0x80 | (code & 0x3F));
    return text;
  }

  std::string_view text_;
  size_t next_ = 0;
  int line_ = 1;
};

}  // namespace

absl::StatusOr<std::vector<TomlItem>> ReadToml(std::string_view text) { return TomlReader(text).Read(); }

}  // namespace weft
