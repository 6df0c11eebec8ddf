#include "weft/nn/attention_mask.h"

#include <algorithm>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/strings/str_cat.h>

namespace weft {
namespace {

// The number of pairs with key <= query, for queries at positions [first, first + queries) and keys at
// positions [0, keys): the sum of clamp(query + 1, 0, keys) over the queries.
int64_t PairsUpTo(int64_t first, int64_t queries, int64_t keys) {
  // The number of pairs whose query lies in [0, end).
  const auto pairs_below = [keys](int64_t end) {
    const int64_t slope = std::clamp<int64_t>(end, 0, keys);
    const int64_t beyond = std::max<int64_t>(end - keys, 0);
    return slope * (slope + 1) / 2 + beyond * keys;
  };
  return pairs_below(first + queries) - pairs_below(first);
}

}  // namespace

absl::Status Validate(const AttentionMask& mask) {
  if (!mask.keys_before.has_value()) return absl::OkStatus();
  if (*mask.keys_before < 1) {
    return absl::InvalidArgumentError(absl::StrCat("the mask's keys_before is ", *mask.keys_before,
                                                   ": set it to at least 1, or not at all"));
  }
  if (!mask.causal) {
    return absl::InvalidArgumentError(
        absl::StrCat("the mask's keys_before is ", *mask.keys_before,
                     " without a causal mask: make the mask causal, or do not set keys_before"));
  }
  return absl::OkStatus();
}

int64_t VisiblePairs(const AttentionMask& mask, const TokenRun& queries, const TokenRun& keys) {
  if (queries.document != keys.document) return 0;
  if (!mask.causal) return queries.count * keys.count;
  const int64_t first = queries.position - keys.position;
  const int64_t up_to_query = PairsUpTo(first, queries.count, keys.count);
  if (!mask.keys_before.has_value()) return up_to_query;
  return up_to_query - PairsUpTo(first - *mask.keys_before - 1, queries.count, keys.count);
}

int64_t VisiblePairs(const AttentionMask& mask, const TokenRuns& queries, const TokenRuns& keys) {
  constexpr size_t kFewPairsOfRuns = 64;  // They take less time than a table.
  int64_t pairs = 0;
  if (queries.size() * keys.size() <= kFewPairsOfRuns) {
    for (const TokenRun& query_run : queries) {
      for (const TokenRun& key_run : keys) pairs += VisiblePairs(mask, query_run, key_run);
    }
    return pairs;
  }
  absl::flat_hash_map<int64_t, std::vector<TokenRun>> keys_of_document;
  for (const TokenRun& run : keys) keys_of_document[run.document].push_back(run);
  for (const TokenRun& query_run : queries) {
    const auto found = keys_of_document.find(query_run.document);
    if (found == keys_of_document.end()) continue;
    for (const TokenRun& key_run : found->second) pairs += VisiblePairs(mask, query_run, key_run);
  }
  return pairs;
}

}  // namespace weft
