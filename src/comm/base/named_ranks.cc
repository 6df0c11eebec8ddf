#include "src/comm/base/named_ranks.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include "weft/core/status.h"
#include "weft/core/utf8.h"

namespace weft {
namespace {

constexpr std::string_view kSilent = "no heartbeat from rank(s) ";
constexpr std::string_view kLate = "rank(s) ";
constexpr std::string_view kLateEnd = " have not submitted what others wait for";
constexpr std::string_view kAwaited = "waits for rank(s) ";
constexpr std::string_view kSource = "waits for data of rank(s) ";
constexpr std::string_view kListCharacters = "0123456789, ";

void AddRanks(std::string_view list, std::set<int>& ranks) {
  for (const absl::string_view number : absl::StrSplit(ToAbsl(list), ", ")) {
    int rank = 0;
    if (absl::SimpleAtoi(number, &rank)) ranks.insert(rank);
  }
}

// Adds the ranks of the list behind each `phrase`.
void AddRanksBehind(std::string_view phrase, std::string_view text, std::set<int>& ranks) {
  for (size_t at = text.find(phrase); at != std::string_view::npos; at = text.find(phrase)) {
    text.remove_prefix(at + phrase.size());
    AddRanks(text.substr(0, text.find_first_not_of(kListCharacters)), ranks);
  }
}

// Adds the ranks of the list before each kLateEnd.
void AddLateRanks(std::string_view text, std::set<int>& ranks) {
  for (size_t end = text.find(kLateEnd); end != std::string_view::npos; end = text.find(kLateEnd)) {
    const size_t begin = text.substr(0, end).find_last_not_of(kListCharacters) + 1;
    AddRanks(text.substr(begin, end - begin), ranks);
    text.remove_prefix(end + kLateEnd.size());
  }
}

std::string Text(std::string_view phrase, const std::set<int>& ranks) {
  return absl::StrCat(ToAbsl(phrase), absl::StrJoin(ranks, ", "));
}

}  // namespace

std::string DescribeMissing(const std::set<int>& silent, const std::set<int>& late) {
  std::string text;
  if (!silent.empty()) absl::StrAppend(&text, Text(kSilent, silent), "; ");
  if (!late.empty()) absl::StrAppend(&text, Text(kLate, late), ToAbsl(kLateEnd), "; ");
  return text;
}

std::string DescribeAwaited(const std::set<int>& ranks) { return Text(kAwaited, ranks); }

std::string DescribeSource(int rank) { return Text(kSource, {rank}); }

std::string_view CutText(std::string_view text, size_t bytes) {
  std::string_view cut = TruncateUtf8(text, bytes);
  if (cut.size() == text.size()) return text;
  while (!cut.empty() && absl::ascii_isdigit(static_cast<unsigned char>(cut.back()))) cut.remove_suffix(1);
  return cut;
}

NamedRanks RanksNamedIn(std::string_view text, int ranks) {
  NamedRanks named;
  AddRanksBehind(kSilent, text, named.silent);
  AddLateRanks(text, named.late);
  AddRanksBehind(kAwaited, text, named.awaited);
  AddRanksBehind(kSource, text, named.awaited);
  for (std::set<int>* list : {&named.silent, &named.late, &named.awaited})
    list->erase(list->lower_bound(ranks), list->end());
  return named;
}

}  // namespace weft
