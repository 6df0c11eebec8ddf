// Group of flags of a help text, each bound to a field. Checks values; its messages name the flag.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

namespace weft {

// Adds flags to an application. If a flag is given more than once, its last value counts.
// Lifetime: the fields must outlive the application.
class FlagGroup {
 public:
  using Words = std::vector<std::string>;

  FlagGroup(CLI::App& app, std::string name) : app_(app), name_(std::move(name)) {}

  template <typename T>
  void Number(const char* flag, T& field, const char* help) {
    AddNumber<T>(flag, help, [&field](T value) { field = value; })->default_str(absl::StrCat(field));
  }
  template <typename T>
  void Number(const char* flag, std::optional<T>& field, const char* help) {
    AddNumber<T>(flag, help, [&field](T value) { field = value; });
  }
  // A path or a name, which must not be empty.
  void Text(const char* flag, std::string& field, const char* help, const char* type) {
    Finish(app_.add_option(flag, field, help)->check(TextCheck())->default_str(field), type);
  }
  // Any text, even an empty one. Unset without the flag.
  void Text(const char* flag, std::optional<std::string>& field, const char* help, const char* type) {
    Finish(app_.add_option(flag, field, help), type);
  }
  // The values of all occurrences of the flag are joined.
  void Texts(const char* flag, Words& field, const char* help, const char* type) {
    app_.add_option(flag, field, help)->check(TextCheck())->group(name_)->type_name(type);
  }
  // Two words for each occurrence of the flag.
  void Pairs(const char* flag, std::vector<std::pair<std::string, std::string>>& field, const char* help,
             const char* type) {
    app_.add_option(flag, field, help)->check(ValueCheck())->group(name_)->type_name(type);
  }
  void Bool(const char* flag, bool& field, const char* help) {
    Choice(flag, {"false", "true"}, field ? "true" : "false", help, [&field](size_t chosen) {
      field = chosen == 1;
    })->type_name("BOOL");
  }
  void Bool(const char* flag, std::optional<bool>& field, const char* help) {
    Choice(flag, {"false", "true"}, "", help, [&field](size_t chosen) {
      field = chosen == 1;
    })->type_name("BOOL");
  }
  // A flag without a value.
  void Switch(const char* flag, bool& field, const char* help) {
    app_.add_flag(flag, field, help)->group(name_);
  }
  void OneOf(const char* flag, std::string& field, const Words& words, const std::string& default_word,
             const char* help) {
    Choice(flag, words, default_word, help, [&field, words](size_t chosen) { field = words[chosen]; });
  }
  // For an enumeration whose values Name(value) names.
  template <typename E>
  void OneOf(const char* flag, E& field, std::vector<E> values, const char* help) {
    const Words words = NamesOf(values);
    Choice(flag, words, std::string(Name(field)), help,
           [&field, values = std::move(values)](size_t chosen) { field = values[chosen]; });
  }
  // Like OneOf; the field stays unset without the flag.
  template <typename E>
  void OneOfOrUnset(const char* flag, std::optional<E>& field, std::vector<E> values, const char* help) {
    const Words words = NamesOf(values);
    Choice(flag, words, "", help,
           [&field, values = std::move(values)](size_t chosen) { field = values[chosen]; });
  }

 private:
  // Unset if the text is not such a number. Decimal: CLI11 would read 010 as 8.
  template <typename T>
  static std::optional<T> ParseNumber(const std::string& text) {
    T value{};
    if constexpr (std::is_same_v<T, double>) {
      if (!absl::SimpleAtod(text, &value) || !std::isfinite(value)) return std::nullopt;
      const std::string significand = text.substr(0, text.find_first_of("eE"));
      const bool is_zero = significand.find_first_of("123456789") == std::string::npos;
      if (value == 0 && !is_zero) return std::nullopt;  // It is too small for a double.
    } else {
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    }
    return value;
  }
  // Validators return "" for a valid value, else a message. CLI11 puts the flag's name in front of the
  // message.
  template <typename T>
  static CLI::Validator NumberCheck() {
    return {[](std::string& text) {
              if (ParseNumber<T>(text)) return std::string();
              return absl::StrCat("'", text, "' is not a ",
                                  std::is_same_v<T, double> ? "number" : "whole number in range");
            },
            ""};
  }
  // `set` takes the last value that is given.
  template <typename T>
  CLI::Option* AddNumber(const char* flag, const char* help, std::function<void(T)> set) {
    CLI::Option* option = app_.add_option_function<std::string>(
        flag, [set = std::move(set)](const std::string& text) { set(*ParseNumber<T>(text)); }, help);
    return Finish(option->check(NumberCheck<T>()), "N");
  }
  // Refuses a flag as a value: if a flag has no value, CLI11 takes the next flag for it.
  static CLI::Validator ValueCheck();
  // Refuses an empty value, too.
  static CLI::Validator TextCheck();
  template <typename E>
  static Words NamesOf(const std::vector<E>& values) {
    Words words;
    for (const E value : values) words.emplace_back(Name(value));
    return words;
  }
  CLI::Option* Choice(const char* flag, const Words& words, const std::string& default_word, const char* help,
                      std::function<void(size_t)> choose);
  CLI::Option* Finish(CLI::Option* option, const std::string& type);

  CLI::App& app_;
  std::string name_;
};

}  // namespace weft
