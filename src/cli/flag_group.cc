#include "src/cli/flag_group.h"

#include <algorithm>

#include <absl/strings/str_join.h>

#include "src/cli/nearest.h"

namespace weft {
namespace {

using Words = FlagGroup::Words;

CLI::Validator WordCheck(Words words) {
  return {[words = std::move(words)](std::string& text) {
            for (const std::string& word : words) {
              if (word == text) {
                return std::string();
              }
            }
            return words.size() == 2 ? absl::StrCat("'", text, "' is neither ", words[0], " nor ", words[1])
                                     : absl::StrCat("'", text, "' is not one of ", absl::StrJoin(words, ", "),
                                                    Suggestion(text, words, ""));
          },
          ""};
}

}  // namespace

CLI::Validator FlagGroup::TextCheck() {
  return {[check = ValueCheck()](std::string& text) {
            return text.empty() ? std::string("the value is empty") : check(text);
          },
          ""};
}

CLI::Validator FlagGroup::ValueCheck() {
  return {[](std::string& text) {
            return text.rfind("--", 0) == 0 ? absl::StrCat("'", text, "' is a flag: the value is missing")
                                            : std::string();
          },
          ""};
}

CLI::Option* FlagGroup::Choice(const char* flag, const Words& words, const std::string& default_word,
                               const char* help, std::function<void(size_t)> choose) {
  CLI::Option* option = app_.add_option_function<std::string>(
      flag,
      [words, choose = std::move(choose)](const std::string& word) {
        choose(static_cast<size_t>(std::find(words.begin(), words.end(), word) - words.begin()));
      },
      help);
  option->check(WordCheck(words))->default_str(default_word);
  return Finish(option, absl::StrJoin(words, "|"));
}

CLI::Option* FlagGroup::Finish(CLI::Option* option, const std::string& type) {
  return option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)->group(name_)->type_name(type);
}

}  // namespace weft
