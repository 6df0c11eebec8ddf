#include "weft/context_parallel/byte_formulas.h"

#include <algorithm>
#include <numeric>

#include "context_parallel/layouts/head_split.h"
#include "context_parallel/layouts/query_tails.h"
#include "context_parallel/layouts/ring_plan.h"
#include "context_parallel/layouts/run_slices.h"

namespace weft {
namespace {

constexpr int64_t kGradientBytes = 4;  // Gradients of keys and values that are summed travel in f32.

// One rank's place on the two levels of its scheme.
struct Place {
  const ContextScheme& scheme;
  const AttentionShape& shape;
  const AttentionMask& mask;
  HeadSplit split;
  int inner_rank;
  std::vector<int64_t> inner_tokens;  // Of its inner group.
  SequenceParts outer;

  HeadRange queries() const { return split.queries()[static_cast<size_t>(inner_rank)]; }
  HeadRange keys() const { return split.keys()[static_cast<size_t>(inner_rank)]; }
  int64_t own_tokens() const { return inner_tokens[static_cast<size_t>(inner_rank)]; }
  int64_t bytes() const { return static_cast<int64_t>(SizeOf(shape.dtype)); }
  // Of a token's keys and values, for the heads that this rank has.
  int64_t key_elements() const { return keys().count * (shape.head_dim + shape.value_dim); }
};

Place PlaceOf(const ContextScheme& scheme, const AttentionShape& shape, const AttentionMask& mask,
              const SequenceLayout& layout, int rank) {
  const int inner = layout.split().inner;
  Place place{.scheme = scheme,
              .shape = shape,
              .mask = mask,
              .split = HeadSplit(shape.heads, shape.kv_heads, inner),
              .inner_rank = rank % inner,
              .inner_tokens = {},
              .outer = OuterParts(*layout.Parts(rank), inner)};
  for (int i = 0; i < inner; ++i) place.inner_tokens.push_back(layout.TokensOf(rank - place.inner_rank + i));
  return place;
}

// Of an exchange of heads: what a rank gets of others' tokens, per element of one of its heads; and of its
// own tokens, per element of others' heads.
int64_t OthersTokens(const Place& place) {
  return std::accumulate(place.inner_tokens.begin(), place.inner_tokens.end(), int64_t{0}) -
         place.own_tokens();
}
int64_t OthersHeads(const std::vector<HeadRange>& heads, int me) {
  int64_t count = 0;
  for (const HeadRange& range : heads) count += range.count;
  return count - heads[static_cast<size_t>(me)].count;
}

void AddHeadExchange(const Place& place, ContextCosts& costs) {
  const AttentionShape& shape = place.shape;
  const bool wide = place.outer.ranks() > 1 || place.split.replicates();
  const int64_t gradient_bytes = wide ? kGradientBytes : place.bytes();
  const int64_t tokens = OthersTokens(place);
  const int64_t query_heads = place.queries().count;
  const int64_t others_queries = OthersHeads(place.split.queries(), place.inner_rank);
  const int64_t others_keys = OthersHeads(place.split.keys(), place.inner_rank);
  costs.forward_bytes += tokens * (query_heads * shape.head_dim + place.key_elements()) * place.bytes();
  costs.forward_bytes += place.own_tokens() * others_queries * shape.value_dim * place.bytes();
  costs.backward_bytes += tokens * query_heads * shape.value_dim * place.bytes();
  costs.backward_bytes += place.own_tokens() * others_queries * shape.head_dim * place.bytes();
  costs.backward_bytes +=
      place.own_tokens() * others_keys * (shape.head_dim + shape.value_dim) * gradient_bytes;
}

void AddGather(const Place& place, ContextCosts& costs) {
  int64_t all = 0;
  for (const TokenRuns& runs : place.outer.parts) all += TokenCount(runs);
  const int64_t own = TokenCount(place.outer.runs());
  const int64_t gathered = (all - own) * place.key_elements() * place.bytes();
  costs.forward_bytes += gathered;
  costs.backward_bytes += (place.outer.ranks() - 1) * own * place.key_elements() * kGradientBytes;
  if (place.scheme.has_ring()) costs.backward_bytes += gathered;
  if (place.scheme.balance != LoadBalance::kQueryExchange) return;
  const QueryTails tails(place.outer);
  const AttentionShape& shape = place.shape;
  const int64_t queries = tails.taken() * place.queries().count * place.bytes();
  const int64_t results = tails.given() * place.queries().count * place.bytes();
  costs.forward_bytes += queries * shape.head_dim + results * shape.value_dim;
  costs.backward_bytes += queries * shape.value_dim + results * shape.head_dim;
}

void AddShiftedRing(const Place& place, ContextCosts& costs) {
  const RingPlan plan(place.mask, place.outer.parts);
  const int me = place.outer.own;
  const auto elements = [&](int source) {
    return TokenCount(place.outer.parts[static_cast<size_t>(source)]) * place.key_elements();
  };
  for (int distance = 1; distance <= plan.hops(); ++distance) {
    const int source = plan.SourceAt(me, distance);
    if (plan.Travels(source, distance)) {
      costs.forward_bytes += elements(source) * place.bytes();
      costs.backward_bytes += elements(source) * place.bytes();
    }
    if (plan.GradientsTravel(source, distance - 1)) costs.backward_bytes += elements(source) * kGradientBytes;
    if (plan.GradientsGoHome(me, distance)) costs.backward_bytes += elements(me) * kGradientBytes;
    costs.forward_hops += 1;
    costs.backward_hops += plan.AnyGradientsMove(distance) ? 2 : 1;
  }
}

int64_t PairsOf(const Place& place) {
  const TokenRuns& own = place.outer.runs();
  TokenRuns queries = own;
  if (place.scheme.balance == LoadBalance::kQueryExchange) {
    const QueryTails tails(place.outer);
    queries = tails.kept_runs();
    queries.insert(queries.end(), tails.taken_runs().begin(), tails.taken_runs().end());
  }
  int64_t pairs = 0;
  for (const TokenRuns& keys : place.outer.parts) pairs += VisiblePairs(place.mask, queries, keys);
  return pairs * place.queries().count;
}

}  // namespace

ContextCosts CostsOf(const ContextScheme& scheme, const AttentionShape& shape, const AttentionMask& mask,
                     const SequenceLayout& layout, int rank) {
  const Place place = PlaceOf(scheme, shape, mask, layout, rank);
  ContextCosts costs;
  if (place.inner_tokens.size() > 1) AddHeadExchange(place, costs);
  if (place.outer.ranks() > 1) {
    const bool shifts = scheme.has_ring() && scheme.rotation == RingRotation::kShift;
    shifts ? AddShiftedRing(place, costs) : AddGather(place, costs);
  }
  costs.forward_bytes *= shape.batch;
  costs.backward_bytes *= shape.batch;
  costs.pairs = PairsOf(place);
  return costs;
}

double WorkImbalance(const ContextScheme& scheme, const AttentionShape& shape, const AttentionMask& mask,
                     const SequenceLayout& layout) {
  int64_t most = 0;
  int64_t sum = 0;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const int64_t pairs = CostsOf(scheme, shape, mask, layout, rank).pairs;
    most = std::max(most, pairs);
    sum += pairs;
  }
  return sum == 0 ? 1.0 : static_cast<double>(most) * layout.ranks() / static_cast<double>(sum);
}

}  // namespace weft
