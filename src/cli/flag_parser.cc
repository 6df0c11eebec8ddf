#include "src/cli/flag_parser.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <system_error>
#include <utility>

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/str_split.h>
#include <absl/strings/string_view.h>

#include "src/cli/nearest.h"
#include "src/cli/toml_reader.h"
#include "weft/core/status.h"

namespace weft {
namespace {

using Strings = std::vector<std::string>;

constexpr size_t kHelpWidth = 80;
constexpr size_t kHelpColumn = 32;  // Of the descriptions.
constexpr uintmax_t kMaxConfigBytes = 1 << 20;

// Appends the words of a line to `text`, whose last line has `column` columns. Begins a new line, with
// `indent` spaces, before a word that would pass kHelpWidth.
void AppendWords(absl::string_view line, size_t column, size_t indent, std::string& text) {
  absl::string_view gap;
  for (const absl::string_view word : absl::StrSplit(line, ' ')) {
    if (!gap.empty() && column + gap.size() + word.size() > kHelpWidth) {
      absl::StrAppend(&text, "\n", std::string(indent, ' '));
      column = indent;
      gap = "";
    }
    absl::StrAppend(&text, gap, word);
    column += gap.size() + word.size();
    gap = " ";
  }
}

// Formats options as "--flag TYPE    description [default]". No line is wider than kHelpWidth.
class HelpFormatter : public CLI::Formatter {
 public:
  explicit HelpFormatter(std::string usage) : usage_(std::move(usage)) {}
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    std::string text = absl::StrCat("  ", make_option_name(option, is_positional), make_option_opts(option));
    constexpr size_t kGap = 2;
    if (text.size() + kGap <= kHelpColumn) {
      text.resize(kHelpColumn, ' ');
    } else {
      absl::StrAppend(&text, "\n", std::string(kHelpColumn, ' '));
    }
    AppendWords(make_option_desc(option), kHelpColumn, kHelpColumn, text);
    return text + "\n";
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    return option->get_type_size() == 0 ? "" : " " + option->get_type_name();
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    const std::string& value = option->get_default_str();
    return option->get_description() + (value.empty() ? "" : " [" + value + "]");
  }
  std::string make_description(const CLI::App* app) const override {
    return Wrapped(app->get_description() + "\n");
  }
  std::string make_usage(const CLI::App* /*app*/, std::string /*name*/) const override {
    return Wrapped(usage_);
  }

 private:
  static std::string Wrapped(const std::string& lines) {
    std::string text;
    for (const absl::string_view line : absl::StrSplit(lines, '\n')) {
      AppendWords(line, 0, 0, text);
      text += '\n';
    }
    text.pop_back();
    return text;
  }

  const std::string usage_;
};

// The names of all flags, without dashes.
Strings FlagNames(const CLI::App& app) {
  Strings names;
  for (const CLI::Option* option : app.get_options()) {
    names.push_back(option->get_single_name());
  }
  return names;
}

// Fails if an argument belongs to no flag; names the first such flag or argument.
absl::Status CheckExtras(const CLI::App& app) {
  const Strings extras = app.remaining();
  if (extras.empty()) {
    return absl::OkStatus();
  }
  // The value after an unknown flag is an extra too, but the error must name the flag.
  const auto flag = std::find_if(extras.begin(), extras.end(), LooksLikeFlag);
  if (flag != extras.end()) return UnknownFlag(*flag, app.get_name(), FlagNames(app));
  return absl::InvalidArgumentError(
      absl::StrCat("unexpected argument '", extras.front(), "': see weft ", app.get_name(), " --help"));
}

// The error of CLI11, reworded where its message is hard to read.
absl::Status ParseError(const CLI::ParseError& error) {
  const std::string message = error.what();
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    const std::string flag = message.substr(0, message.find(':'));
    return absl::InvalidArgumentError(absl::StrCat(flag, " is given without a value"));
  }
  return absl::InvalidArgumentError(message);
}

// Applies one key of the file, unless the command line sets its flag. `lines`: the line of each key so far.
absl::Status ApplyConfigItem(CLI::App& app, const TomlItem& item, std::map<std::string, int>& lines) {
  const Strings names = FlagNames(app);
  if (std::find(names.begin(), names.end(), item.key) == names.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown key '", item.key, "'",
                     Suggestion(item.key, names, ": keys are the flags that --help lists", "'", "'")));
  }
  CLI::Option* option = app.get_option("--" + item.key);
  if (item.key == "config" || !option->get_configurable()) {
    return absl::InvalidArgumentError(absl::StrCat("'", item.key, "' is allowed on the command line only"));
  }
  const bool takes_list = option->get_items_expected_max() > 1;
  const auto [first, is_new] = lines.emplace(item.key, item.line);
  if (!is_new) {
    return absl::InvalidArgumentError(
        absl::StrCat("key '", item.key, "' is given in line ", first->second, " and in line ", item.line,
                     takes_list ? ": write all its values in one list" : ": keep one of them"));
  }
  if (item.is_list && !takes_list) {
    return absl::InvalidArgumentError(absl::StrCat("key '", item.key, "' takes one value, not a list"));
  }
  if (item.values.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("key '", item.key, "' has an empty list: give it a value, or remove the key"));
  }
  if (takes_list) WEFT_RETURN_IF_ERROR(CheckBrackets(item.values));
  if (option->count() == 0) {
    option->add_result(item.values);
    option->run_callback();
  }
  return absl::OkStatus();
}

// The text of the file of --config. Refuses a FIFO, whose open would wait for a writer, and a file so large
// that it would fill the memory.
absl::StatusOr<std::string> ReadConfigFile(const std::string& path) {
  if (access(path.c_str(), R_OK) != 0) {
    const int cause = errno;
    return absl::Status(cause == EACCES ? absl::StatusCode::kPermissionDenied : absl::StatusCode::kNotFound,
                        std::strerror(cause));
  }
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return absl::NotFoundError("is a folder: name a file");
  }
  if (!std::filesystem::is_regular_file(path, error)) {
    return absl::DataLossError("this is a FIFO, a socket or a device: copy its content to a file");
  }
  if (const uintmax_t bytes = std::filesystem::file_size(path, error); bytes > kMaxConfigBytes) {
    return absl::DataLossError(
        absl::StrCat("the file has ", bytes, " bytes, but at most ", kMaxConfigBytes, " are allowed"));
  }
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.good()) return absl::DataLossError("the file cannot be read");
  return text;
}

std::string QuotedForToml(const std::string& value) {
  std::string quoted = "\"";
  for (const char c : value) {
    if (c == '\\' || c == '"') {
      absl::StrAppend(&quoted, "\\", std::string(1, c));
    } else if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) {
      absl::StrAppendFormat(&quoted, "\\u%04x", static_cast<unsigned char>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

}  // namespace

absl::Status CheckBrackets(const Strings& values) {
  for (const std::string& value : values) {
    const absl::string_view path(value.rfind("--", 0) == 0 ? value.c_str() + value.find('=') + 1
                                                           : value.c_str());
    if (!absl::StartsWith(path, "[") || !absl::EndsWith(path, "]")) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("'", path, "' is a list, which is not allowed: write ./", path, " for a path"));
  }
  return absl::OkStatus();
}

absl::Status ApplyConfigFile(CLI::App& app, const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(const std::string text, ReadConfigFile(path));
  WEFT_ASSIGN_OR_RETURN(const std::vector<TomlItem> items, ReadToml(text));
  std::map<std::string, int> lines;
  try {
    for (const TomlItem& item : items) WEFT_RETURN_IF_ERROR(ApplyConfigItem(app, item, lines));
  } catch (const CLI::ParseError& error) {
    return ParseError(error);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<PrintText>> ParseFlags(CLI::App& app, const char* usage,
                                                    const Strings& arguments) {
  app.formatter(std::make_shared<HelpFormatter>(usage));
  app.allow_extras();
  app.set_help_flag("--help,-h", "Print this text")->group("Other");
  try {
    app.parse(Strings(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    return PrintText{absl::StrReplaceAll(app.help(), {{"\n\n\n", "\n\n"}})};
  } catch (const CLI::ParseError& error) {
    return ParseError(error);
  }
  WEFT_RETURN_IF_ERROR(CheckExtras(app));
  return std::nullopt;
}

std::string GivenFlags(const CLI::App& app) {
  // The first line marks the file as one of a run: CheckConfigBeside compares it with that of an older file.
  std::string text =
      "# Flags of a run. To repeat it: weft train --config THIS_FILE --metrics NEW.jsonl\n"
      "# If the file has them, also give a new --checkpoint-dir, --export-hf, --tensorboard and --trace.\n";
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_single_name();
    if (option->count() == 0 || name == "config" || name == "metrics" || name == "resume") continue;
    const bool is_list = option->get_items_expected_max() > 1;
    Strings values = option->results();
    if (!is_list) values = {values.back()};
    for (std::string& value : values) value = QuotedForToml(value);
    const std::string joined = absl::StrJoin(values, ", ");
    absl::StrAppend(&text, name, " = ", is_list ? absl::StrCat("[", joined, "]") : joined, "\n");
  }
  return text;
}

}  // namespace weft
