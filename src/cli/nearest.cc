#include "src/cli/nearest.h"

#include <algorithm>

#include <absl/strings/str_cat.h>

#include "weft/core/status.h"

namespace weft {

int EditDistance(std::string_view a, std::string_view b) {
  // Row i holds the distances between the first i characters of a and every prefix of b.
  std::vector<int> before_last;
  std::vector<int> last(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) {
    last[j] = static_cast<int>(j);
  }
  for (size_t i = 1; i <= a.size(); ++i) {
    std::vector<int> row(b.size() + 1);
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
    before_last = std::move(last);
    last = std::move(row);
  }
  return last.back();
}

std::string Nearest(std::string_view word, const std::vector<std::string>& candidates) {
  for (const std::string& candidate : candidates) {
    if (word.size() > 1 && candidate.starts_with(word)) return candidate;
  }
  const auto nearest = std::min_element(candidates.begin(), candidates.end(),
                                        [word](const std::string& a, const std::string& b) {
                                          return EditDistance(word, a) < EditDistance(word, b);
                                        });
  if (nearest == candidates.end()) return "";
  const size_t longer = std::max(word.size(), nearest->size());
  return 3 * static_cast<size_t>(EditDistance(word, *nearest)) <= 2 * longer ? *nearest : "";
}

std::string Suggestion(std::string_view word, const std::vector<std::string>& candidates,
                       std::string_view otherwise, std::string_view prefix, std::string_view suffix) {
  const std::string nearest = Nearest(word, candidates);
  return nearest.empty() ? std::string(otherwise)
                         : absl::StrCat("; did you mean ", ToAbsl(prefix), nearest, ToAbsl(suffix), "?");
}

bool LooksLikeFlag(std::string_view argument) { return argument.size() > 1 && argument.front() == '-'; }

absl::Status UnknownFlag(std::string_view argument, std::string_view command,
                         const std::vector<std::string>& flags) {
  const std::string_view flag = argument.substr(0, argument.find('='));
  const std::string_view name = flag.substr(std::min(flag.find_first_not_of('-'), flag.size()));
  const std::string help = absl::StrCat(": see weft ", ToAbsl(command), " --help");
  const std::string remedy = name.size() < 2 ? help : Suggestion(name, flags, help, "--");
  return absl::InvalidArgumentError(absl::StrCat("unknown flag ", ToAbsl(flag), remedy));
}

}  // namespace weft
