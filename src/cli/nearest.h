// Suggestions for misspelled words, by edit distance.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft {

// The Damerau-Levenshtein distance (optimal string alignment): the fewest insertions, deletions, replacements
// and swaps of adjacent characters that turn `a` into `b`.
int EditDistance(std::string_view a, std::string_view b);

// The candidate with the smallest distance to `word`; the first one of several. Empty without candidates.
std::string Nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace weft
