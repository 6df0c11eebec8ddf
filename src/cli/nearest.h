// The word that somebody probably meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft {

// Insertions, deletions, replacements and swaps of neighbours that turn one word into the other.
int EditDistance(std::string_view a, std::string_view b);

// The candidate with the smallest distance; the first of several; empty where there is no candidate.
std::string Nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace weft
