#include <algorithm>
#include <vector>

#include "src/nn/sparse/index_scores.h"
#include "src/nn/sparse/selected_keys.h"
#include "src/nn/sparse/top_keys.h"
#include "src/nn/sparse/visible_keys.h"
#include "weft/core/parallel.h"
#include "weft/core/status.h"
#include "weft/nn/sparse/sparse_attention_kernel.h"

namespace weft {
namespace {

// Queries that visit a tile of keys one after the other, and the keys of a tile: the packed index keys of a
// tile stay in the cache of a core.
constexpr int64_t kQueryBlock = 32;
constexpr int64_t kTileKeys = 16 * kKeyChunk;

// A query of the block that is processed.
struct RunningQuery {
  std::vector<VisibleSpan> spans;
  TopKeys best;
};

// Offers the keys of one span that lie in [begin, end).
void OfferKeys(const PackedIndexQueries& queries, int64_t query, const PackedIndexKeys& keys,
               const VisibleSpan& span, int64_t begin, int64_t end, TopKeys& best) {
  begin = std::max(begin, span.begin);
  end = std::min(end, span.end);
  float scores[kKeyChunk];
  while (begin < end) {
    const int64_t chunk = begin / kKeyChunk;
    const int64_t chunk_end = std::min(end, (chunk + 1) * kKeyChunk);
    queries.Score(query, keys, chunk, scores);
    best.Add(scores + begin % kKeyChunk, chunk_end - begin, span.rank + begin - span.begin);
    begin = chunk_end;
  }
}

// Arguments of one SelectKeys, shared by all query blocks.
struct SelectCall {
  const IndexQueries& index;
  const TokenRuns& q_runs;
  const VisibleKeys& visible;
  int64_t key_count;
  const KeySelection& selection;
};

void Prepare(const SelectCall& call, int64_t first, std::vector<RunningQuery>& block) {
  size_t query = 0;
  for (const TokenRun& run : SliceRuns(call.q_runs, first, static_cast<int64_t>(block.size()))) {
    for (int64_t i = 0; i < run.count; ++i, ++query) {
      call.visible.SpansOf(run.document, run.position + i, block[query].spans);
      block[query].best.Clear();
    }
  }
}

void StoreSelection(const SelectCall& call, int64_t row, TopKeys& best) {
  const int64_t width = call.selection.width();
  auto* keys = call.selection.keys.As<int32_t>() + row * width;
  auto* scores = call.selection.scores.As<float>() + row * width;
  int32_t count = 0;
  best.Finish([&](Candidate candidate) {
    keys[count] = static_cast<int32_t>(call.visible.NumberOfRank(RankOf(candidate)));
    scores[count] = ScoreOf(candidate);
    ++count;
  });
  std::fill(keys + count, keys + width, 0);
  std::fill(scores + count, scores + width, 0.0F);
  call.selection.counts.As<int32_t>()[row] = count;
}

void SelectForBlock(const SelectCall& call, const PackedIndexKeys& keys, int64_t batch, int64_t first,
                    std::vector<RunningQuery>& block) {
  const auto count = static_cast<int64_t>(block.size());
  Prepare(call, first, block);
  const PackedIndexQueries queries(call.index, batch, first, count);
  for (int64_t tile = 0; tile < call.key_count; tile += kTileKeys) {
    for (int64_t query = 0; query < count; ++query) {
      RunningQuery& running = block[static_cast<size_t>(query)];
      for (const VisibleSpan& span : running.spans) {
        OfferKeys(queries, query, keys, span, tile, tile + kTileKeys, running.best);
      }
    }
  }
  const int64_t first_row = batch * call.index.q.shape[1] + first;
  for (int64_t query = 0; query < count; ++query) {
    StoreSelection(call, first_row + query, block[static_cast<size_t>(query)].best);
  }
}

KeySelection EmptySelection(int64_t batches, int64_t queries, int64_t width) {
  return {Tensor::Empty(DType::kI32, {batches, queries, width}),
          Tensor::Empty(DType::kF32, {batches, queries, width}),
          Tensor::Zeros(DType::kI32, {batches, queries})};
}

}  // namespace

KeySelection SelectKeys(const AttentionMask& mask, int64_t top_k, const IndexQueries& index,
                        const TokenRuns& q_runs, absl::Span<const KeyBlock> keys, IndexKeys index_keys) {
  WEFT_CHECK(top_k > 0, "sparse attention needs a positive top_k");
  const int64_t queries = index.q.shape[1];
  const int64_t key_count = KeyCount(keys);
  const int64_t width = std::min(top_k, key_count);
  KeySelection selection = EmptySelection(index.q.shape[0], queries, width);
  if (width == 0) return selection;
  const VisibleKeys visible(mask, keys);
  const SelectCall call = {index, q_runs, visible, key_count, selection};
  const int64_t blocks = (queries + kQueryBlock - 1) / kQueryBlock;
  for (int64_t batch = 0; batch < index.q.shape[0]; ++batch) {
    const PackedIndexKeys packed(index_keys, batch);
    ParallelFor(blocks, 1, [&](int64_t begin, int64_t end) {
      std::vector<RunningQuery> running(kQueryBlock, RunningQuery{{}, TopKeys(width)});
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * kQueryBlock;
        running.resize(static_cast<size_t>(std::min(kQueryBlock, queries - first)),
                       RunningQuery{{}, TopKeys(width)});
        SelectForBlock(call, packed, batch, first, running);
      }
    });
  }
  return selection;
}

}  // namespace weft
