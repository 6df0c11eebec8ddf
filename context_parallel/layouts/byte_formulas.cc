#include "weft/context_parallel/byte_formulas.h"

#include <algorithm>
#include <numeric>

#include "context_parallel/layouts/head_split.h"
#include "context_parallel/layouts/query_tails.h"
#include "context_parallel/layouts/ring_plan.h"

namespace weft {
namespace {

constexpr int64_t kGradientBytes = 4;  // Gradients of keys and values are sent in f32 if ranks sum them.

// One rank on the two levels of its scheme.
struct RankLevels {
  const ContextScheme& scheme;
  const AttentionShape& shape;
  const AttentionMask& mask;
  HeadSplit split;
  int inner_rank;
  std::vector<int64_t> inner_tokens;  // Tokens of each rank of the inner group.
  SequenceParts outer;

  HeadRange queries() const { return split.queries()[static_cast<size_t>(inner_rank)]; }
  HeadRange keys() const { return split.keys()[static_cast<size_t>(inner_rank)]; }
  int64_t own_tokens() const { return inner_tokens[static_cast<size_t>(inner_rank)]; }
  int64_t bytes() const { return static_cast<int64_t>(SizeOf(shape.dtype)); }
  // Elements of the keys and values of one token, over this rank's heads, and of its index key.
  int64_t key_elements() const { return keys().count * (shape.head_dim + shape.value_dim) + shape.index_dim; }
};

RankLevels LevelsOfRank(const ContextScheme& scheme, const AttentionShape& shape, const AttentionMask& mask,
                        const SequenceLayout& layout, int rank) {
  const int inner = layout.split().inner;
  RankLevels levels{.scheme = scheme,
                    .shape = shape,
                    .mask = mask,
                    .split = HeadSplit(shape.heads, shape.kv_heads, inner),
                    .inner_rank = rank % inner,
                    .inner_tokens = {},
                    .outer = OuterParts(*layout.Parts(rank), inner)};
  for (int i = 0; i < inner; ++i)
    levels.inner_tokens.push_back(layout.TokensOf(rank - levels.inner_rank + i));
  return levels;
}

// Tokens of the other ranks of the inner group. GatherTokens brings each of them once per head of this rank.
int64_t PeerTokens(const RankLevels& levels) {
  return std::accumulate(levels.inner_tokens.begin(), levels.inner_tokens.end(), int64_t{0}) -
         levels.own_tokens();
}

// Heads of the other ranks of the inner group. GatherHeads brings each of them once per token of this rank.
int64_t PeerHeads(const std::vector<HeadRange>& heads, int rank) {
  int64_t count = 0;
  for (const HeadRange& range : heads) count += range.count;
  return count - heads[static_cast<size_t>(rank)].count;
}

void AddHeadExchange(const RankLevels& levels, ContextCosts& costs) {
  const AttentionShape& shape = levels.shape;
  const bool sums_gradients = levels.outer.ranks() > 1 || levels.split.replicates();
  const int64_t gradient_bytes = sums_gradients ? kGradientBytes : levels.bytes();
  const int64_t tokens = PeerTokens(levels);
  const int64_t query_heads = levels.queries().count;
  const int64_t peer_queries = PeerHeads(levels.split.queries(), levels.inner_rank);
  const int64_t peer_keys = PeerHeads(levels.split.keys(), levels.inner_rank);
  costs.forward_bytes += tokens * (query_heads * shape.head_dim + levels.key_elements()) * levels.bytes();
  costs.forward_bytes += levels.own_tokens() * peer_queries * shape.value_dim * levels.bytes();
  costs.backward_bytes += tokens * query_heads * shape.value_dim * levels.bytes();
  costs.backward_bytes += levels.own_tokens() * peer_queries * shape.head_dim * levels.bytes();
  costs.backward_bytes +=
      levels.own_tokens() * peer_keys * (shape.head_dim + shape.value_dim) * gradient_bytes;
}

void AddGather(const RankLevels& levels, ContextCosts& costs) {
  int64_t all = 0;
  for (const TokenRuns& runs : levels.outer.parts) all += TokenCount(runs);
  const int64_t own = TokenCount(levels.outer.runs());
  const int64_t gathered = (all - own) * levels.key_elements() * levels.bytes();
  costs.forward_bytes += gathered;
  costs.backward_bytes += (levels.outer.ranks() - 1) * own * levels.key_elements() * kGradientBytes;
  if (levels.scheme.ring_rotation) costs.backward_bytes += gathered;
  if (levels.scheme.balance != LoadBalance::kQueryExchange) return;
  const QueryTails tails(levels.outer);
  const AttentionShape& shape = levels.shape;
  const int64_t queries = tails.received() * levels.queries().count * levels.bytes();
  const int64_t results = tails.sent() * levels.queries().count * levels.bytes();
  costs.forward_bytes += queries * shape.head_dim + results * shape.value_dim;
  costs.backward_bytes += queries * shape.value_dim + results * shape.head_dim;
}

void AddShiftedRing(const RankLevels& levels, ContextCosts& costs) {
  const RingPlan plan(levels.mask, levels.outer.parts);
  const int rank = levels.outer.own;
  const auto elements = [&](int owner) {
    return TokenCount(levels.outer.parts[static_cast<size_t>(owner)]) * levels.key_elements();
  };
  for (int distance = 1; distance <= plan.hops(); ++distance) {
    const int owner = plan.OwnerAt(rank, distance);
    if (plan.Reaches(owner, distance)) {
      costs.forward_bytes += elements(owner) * levels.bytes();
      costs.backward_bytes += elements(owner) * levels.bytes();
    }
    if (plan.PassesGradientsOn(owner, distance - 1)) costs.backward_bytes += elements(owner) * kGradientBytes;
    if (plan.ReturnsGradients(rank, distance)) costs.backward_bytes += elements(rank) * kGradientBytes;
    costs.forward_hops += 1;
    costs.backward_hops += plan.SendsAnyGradients(distance) ? 2 : 1;
  }
}

int64_t CountPairs(const RankLevels& levels) {
  const TokenRuns& own = levels.outer.runs();
  TokenRuns queries = own;
  if (levels.scheme.balance == LoadBalance::kQueryExchange) {
    const QueryTails tails(levels.outer);
    queries = tails.kept_runs();
    queries.insert(queries.end(), tails.received_runs().begin(), tails.received_runs().end());
  }
  int64_t pairs = 0;
  for (const TokenRuns& keys : levels.outer.parts) pairs += VisiblePairs(levels.mask, queries, keys);
  return pairs * levels.queries().count;
}

}  // namespace

ContextCosts CostsOf(const ContextScheme& scheme, const AttentionShape& shape, const AttentionMask& mask,
                     const SequenceLayout& layout, int rank) {
  const RankLevels levels = LevelsOfRank(scheme, shape, mask, layout, rank);
  ContextCosts costs;
  if (levels.inner_tokens.size() > 1) AddHeadExchange(levels, costs);
  if (levels.outer.ranks() > 1) {
    const bool is_shifted = scheme.ring_rotation == RingRotation::kShift;
    is_shifted ? AddShiftedRing(levels, costs) : AddGather(levels, costs);
  }
  costs.forward_bytes *= shape.batch;
  costs.backward_bytes *= shape.batch;
  costs.pairs = CountPairs(levels);
  return costs;
}

double WorkImbalance(const ContextScheme& scheme, const AttentionShape& shape, const AttentionMask& mask,
                     const SequenceLayout& layout) {
  int64_t max_pairs = 0;
  int64_t sum = 0;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const int64_t pairs = CostsOf(scheme, shape, mask, layout, rank).pairs;
    max_pairs = std::max(max_pairs, pairs);
    sum += pairs;
  }
  return sum == 0 ? 1.0 : static_cast<double>(max_pairs) * layout.ranks() / static_cast<double>(sum);
}

}  // namespace weft
