// Suggestions for misspelled words, by edit distance, and the error of an unknown flag.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>

namespace weft {

// The Damerau-Levenshtein distance (optimal string alignment): the fewest insertions, deletions, replacements
// and swaps of adjacent characters that turn `a` into `b`.
int EditDistance(std::string_view a, std::string_view b);

// The first candidate that begins with `word`, if that has two characters; otherwise the one with the
// smallest distance to it, the first of several. Empty if that differs in more than two thirds of the
// characters of the longer one.
std::string Nearest(std::string_view word, const std::vector<std::string>& candidates);

// "; did you mean X?" with the nearest candidate between `prefix` and `suffix`, or `otherwise` if none
// resembles `word`.
std::string Suggestion(std::string_view word, const std::vector<std::string>& candidates,
                       std::string_view otherwise, std::string_view prefix = "",
                       std::string_view suffix = "");

// True for "-x" and "--steps=3". A path that begins so is written as ./-x.
bool LooksLikeFlag(std::string_view argument);

// The error of a flag that `weft <command>` does not have: names the nearest of its `flags`, which are
// without dashes, or its help. kInvalidArgument.
absl::Status UnknownFlag(std::string_view argument, std::string_view command,
                         const std::vector<std::string>& flags = {});

}  // namespace weft
