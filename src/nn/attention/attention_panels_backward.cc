#include <algorithm>
#include <vector>

#include "src/nn/attention/attention_panels.h"
#include "src/nn/attention/head_rows.h"
#include "src/nn/attention/key_tile_accumulator.h"
#include "src/nn/attention/packed_heads.h"
#include "src/nn/attention/score_strips.h"
#include "src/nn/attention/tile_strips.h"
#include "src/nn/products/element.h"
#include "src/nn/products/scratch.h"
#include "weft/core/parallel.h"
#include "weft/core/topology.h"

namespace weft {
namespace {

using panels::kBlockWords;
using panels::kPanel;
using panels::kProductFloats;

// Queries, or the gradients of the output: as lines, and as k.
struct PackedQueries {
  explicit PackedQueries(const TensorView& view)
      : rows(panels::Operand::kA, PackedHeads::Lines::kTokens, view),
        transpose(panels::Operand::kA, PackedHeads::Lines::kDims, view) {}

  PackedHeads rows, transpose;
};

// Keys and values of a key block. Keys are lines for the scores and the gradients of the weights, and k for
// dQ.
struct BackwardKeys {
  explicit BackwardKeys(const KeyBlock& block)
      : k(panels::Operand::kB, PackedHeads::Lines::kTokens, block.k),
        v(panels::Operand::kB, PackedHeads::Lines::kTokens, block.v),
        k_transpose(panels::Operand::kB, PackedHeads::Lines::kDims, block.k) {}

  PackedHeads k, v, k_transpose;
};

// Arguments of one AttentionBackwardByPanels, shared by all heads and key tiles.
struct BackwardCall {
  const panels::PanelUnit& unit;
  const AttentionProblem& problem;
  const BatchPlans& plans;
  TileSize size;
  const PackedQueries& q;
  const PackedQueries& dout;
  const std::vector<BackwardKeys>& keys;
  const TensorView& lse;
  const TensorView& delta;
  const Tensor& dq;  // Sums: [batch, heads, panels of queries, panels of head_dim, kProductFloats].
  int64_t head_dim, value_dim;

  int64_t batches() const { return dq.shape()[0]; }
  int64_t heads() const { return dq.shape()[1]; }
  int64_t head_panels() const { return PanelsOf(head_dim); }
  int64_t value_panels() const { return PanelsOf(value_dim); }
  // The sums of a panel of queries.
  float* QuerySums(int64_t batch, int64_t head, int64_t panel) const {
    const int64_t index = (batch * heads() + head) * dq.shape()[2] + panel;
    return dq.As<float>() + index * head_panels() * kProductFloats;
  }
};

// Memory of one thread for one key tile. A panel of keys of dk and dv has a product for each panel of dims,
// which is its transpose.
class KeyTileMemory {
 public:
  explicit KeyTileMemory(const BackwardCall& call) {
    const int64_t keys = PanelsOf(call.size.columns);
    const int64_t strips = PanelsOf(call.size.rows);
    scores = Floats(keys * kProductFloats);
    weight_gradients = Floats(keys * kProductFloats);
    dk = Floats(keys * call.head_panels() * kProductFloats);
    dv = Floats(keys * call.value_panels() * kProductFloats);
    columns = Floats(kPanel * kPanel * std::max(call.head_panels(), call.value_panels()));
    gradients_by_query = Words(keys);
    weights = Words(keys * strips);
    gradients = Words(keys * strips);
  }

  float *scores, *weight_gradients, *dk, *dv, *columns;
  uint32_t *gradients_by_query, *weights, *gradients;

 private:
  float* Floats(int64_t elements) { return scratch_[used_++].Floats(elements); }
  uint32_t* Words(int64_t blocks) {
    return static_cast<uint32_t*>(
        scratch_[used_++].Bytes(static_cast<size_t>(blocks * kBlockWords) * sizeof(uint32_t)));
  }

  static thread_local Scratch scratch_[8];
  int used_ = 0;
};

thread_local Scratch KeyTileMemory::scratch_[8];

// Backward of one query head of one sequence with one key tile.
class HeadBackward {
 public:
  HeadBackward(const BackwardCall& call, const KeyTile& key_tile, int64_t batch, int64_t head)
      : call_(call),
        plan_(call.plans.Of(batch)),
        key_tile_(key_tile),
        keys_(call.keys[static_cast<size_t>(key_tile.block)]),
        batch_(batch),
        head_(head),
        kv_head_(KvHead(call.problem, head)),
        key_panels_(PanelsOf(key_tile.count)),
        memory_(call) {}

  void Run(int64_t key_tile, const TileGradients& sums) {
    if (!plan_.InitializesKeys(key_tile)) {
      std::fill_n(memory_.dk, key_panels_ * call_.head_panels() * kProductFloats, 0.0F);
      std::fill_n(memory_.dv, key_panels_ * call_.value_panels() * kProductFloats, 0.0F);
    }
    for (const AttentionTile& tile : plan_.TilesOf(key_tile)) AddTile(tile);
    Store(memory_.dk, call_.head_dim, sums.dk, sums.beta);
    Store(memory_.dv, call_.value_dim, sums.dv, sums.beta);
  }

 private:
  void AddTile(const AttentionTile& tile) {
    CheckAlignment(tile);
    const int64_t strips = PanelsOf(tile.rows);
    for (int64_t strip = 0; strip < strips; ++strip) AddStrip(tile, strip, strips);
    const int64_t first_key_panel = (tile.first_key - key_tile_.first) / kPanel;
    const int64_t query_block = tile.first_row / kPanel;
    for (int64_t panel = 0; panel < PanelsOf(tile.columns); ++panel) {
      AddToKeys(tile, call_.dout.transpose, query_block, memory_.weights + panel * strips * kBlockWords,
                strips, call_.value_panels(), memory_.dv, first_key_panel + panel);
      AddToKeys(tile, call_.q.transpose, query_block, memory_.gradients + panel * strips * kBlockWords,
                strips, call_.head_panels(), memory_.dk, first_key_panel + panel);
    }
  }

  // Adds the product of the transposed queries with a panel of weights or score gradients to a panel of keys.
  void AddToKeys(const AttentionTile& tile, const PackedHeads& queries, int64_t query_block,
                 const uint32_t* values, int64_t strips, int64_t dim_panels, float* sums, int64_t key_panel) {
    for (int64_t dims = 0; dims < dim_panels; ++dims) {
      call_.unit.multiply(queries.At(batch_, head_, dims, query_block), values, strips,
                          /*continues=*/!tile.initializes_keys,
                          sums + (key_panel * dim_panels + dims) * kProductFloats);
    }
  }

  void AddStrip(const AttentionTile& tile, int64_t strip, int64_t strips) {
    static thread_local std::vector<uint16_t> bits;
    const int64_t key_panels = PanelsOf(tile.columns);
    const int64_t first_key_panel = tile.first_key / kPanel;
    const int64_t row = strip * kPanel;
    const int64_t query_panel = tile.first_row / kPanel + strip;
    for (int64_t panel = 0; panel < key_panels; ++panel) {
      call_.unit.multiply(call_.q.rows.At(batch_, head_, query_panel, 0),
                          keys_.k.At(batch_, kv_head_, first_key_panel + panel, 0), call_.head_panels(),
                          /*continues=*/false, memory_.scores + panel * kProductFloats);
      call_.unit.multiply(call_.dout.rows.At(batch_, head_, query_panel, 0),
                          keys_.v.At(batch_, kv_head_, first_key_panel + panel, 0), call_.value_panels(),
                          /*continues=*/false, memory_.weight_gradients + panel * kProductFloats);
    }
    float lse[kPanel] = {};
    float delta[kPanel] = {};
    const int64_t rows = std::min(kPanel, tile.rows - row);
    std::copy_n(StatisticsOf(call_.lse, batch_, head_) + tile.first_row + row, rows, lse);
    std::copy_n(StatisticsOf(call_.delta, batch_, head_) + tile.first_row + row, rows, delta);
    panels::ScoreGradientsOfStrip(
        {memory_.scores, key_panels, VisibleBits(plan_, tile, row, bits), call_.problem.scale},
        memory_.weight_gradients, lse, delta,
        {memory_.weights + strip * kBlockWords, memory_.gradients + strip * kBlockWords, strips * kBlockWords,
         memory_.gradients_by_query});
    float* dq = call_.QuerySums(batch_, head_, query_panel);
    for (int64_t dims = 0; dims < call_.head_panels(); ++dims) {
      call_.unit.multiply(memory_.gradients_by_query,
                          keys_.k_transpose.At(batch_, kv_head_, dims, first_key_panel), key_panels,
                          /*continues=*/!tile.initializes_rows, dq + dims * kProductFloats);
    }
  }

  // target = sums + beta * target, for the keys of the tile.
  void Store(const float* sums, int64_t dim, HeadRows<float> target, float beta) const {
    const int64_t dim_panels = PanelsOf(dim);
    const int64_t width = dim_panels * kPanel;
    for (int64_t panel = 0; panel < key_panels_; ++panel) {
      panels::UnpackColumns(sums + panel * dim_panels * kProductFloats, kProductFloats, dim_panels,
                            memory_.columns);
      const int64_t first = panel * kPanel;
      for (int64_t key = 0; key < std::min(kPanel, key_tile_.count - first); ++key)
        StoreSumRun(memory_.columns + key * width, beta, dim, target.Row(first + key));
    }
  }

  const BackwardCall& call_;
  const AttentionPlan& plan_;
  const KeyTile& key_tile_;
  const BackwardKeys& keys_;
  int64_t batch_, head_, kv_head_, key_panels_;
  KeyTileMemory memory_;
};

void AccumulateKeyTile(const BackwardCall& call, int64_t index, const KeyTileAccumulator& accumulator) {
  const KeyTile& key_tile = call.plans.first().key_tiles()[static_cast<size_t>(index)];
  ParallelFor(call.batches() * call.heads(), 1, [&](int64_t begin, int64_t end) {
    const panels::PanelScope scope(call.unit);
    for (int64_t item = begin; item < end; ++item) {
      const int64_t batch = item / call.heads();
      const int64_t head = item % call.heads();
      HeadBackward(call, key_tile, batch, head).Run(index, accumulator.HeadGradients(key_tile, batch, head));
    }
  });
  accumulator.Store(key_tile);
}

// Zeroes the sums of the row blocks in which no tile initializes them.
void ZeroQuerySums(const BackwardCall& call) {
  ParallelFor(call.batches() * call.heads(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const AttentionPlan& plan = call.plans.Of(item / call.heads());
      for (int64_t row_block = 0; row_block < plan.row_blocks(); ++row_block) {
        if (plan.InitializesRows(row_block)) continue;
        std::fill_n(
            call.QuerySums(item / call.heads(), item % call.heads(), plan.FirstRow(row_block) / kPanel),
            PanelsOf(plan.RowsOf(row_block)) * call.head_panels() * kProductFloats, 0.0F);
      }
    }
  });
}

// target = sums + beta * target.
void StoreQuerySums(const BackwardCall& call, const TensorView& target, float beta) {
  const int64_t queries = target.shape[1];
  const int64_t query_panels = PanelsOf(queries);
  const int64_t width = call.head_panels() * kPanel;
  ParallelFor(call.batches() * call.heads() * query_panels, 1, [&](int64_t begin, int64_t end) {
    static thread_local Scratch unpacked;
    float* values = unpacked.Floats(kPanel * width);
    for (int64_t item = begin; item < end; ++item) {
      const int64_t panel = item % query_panels;
      const int64_t head = item / query_panels % call.heads();
      const int64_t batch = item / query_panels / call.heads();
      panels::UnpackRows(call.QuerySums(batch, head, panel), call.head_panels(), values);
      WithElementType(target.dtype, [&](auto element) {
        const auto rows = HeadOf<decltype(element)>(target, batch, head).Skip(panel * kPanel);
        for (int64_t row = 0; row < std::min(kPanel, queries - panel * kPanel); ++row)
          StoreSumRun(values + row * width, beta, call.head_dim, rows.Row(row));
      });
    }
  });
}

}  // namespace

void AttentionBackwardByPanels(const panels::PanelUnit& unit, const AttentionProblem& problem,
                               const TensorView& q, const TokenRuns& q_runs, absl::Span<const KeyBlock> keys,
                               const AttentionBackwardInputs& inputs, const AttentionGradients& gradients) {
  const TileSize size = TileSizeFor(HostTopology().core_cache_bytes);
  const BatchPlans plans(problem.mask, problem.pair_mask.get(), q.shape[0], q_runs, RunsOf(keys), size,
                         AttentionPlan::Order::kByKeyTile);
  const PackedQueries packed_q(q);
  const PackedQueries packed_dout(inputs.dout);
  const std::vector<BackwardKeys> packed_keys(keys.begin(), keys.end());
  const int64_t head_dim = q.shape[3];
  const Tensor query_sums = Tensor::Empty(
      DType::kF32, {q.shape[0], q.shape[2], PanelsOf(q.shape[1]), PanelsOf(head_dim), kProductFloats});
  const BackwardCall call = {unit,         problem,     plans,       size,
                             packed_q,     packed_dout, packed_keys, inputs.lse,
                             inputs.delta, query_sums,  head_dim,    inputs.dout.shape[3]};
  ZeroQuerySums(call);
  const KeyTileAccumulator accumulator(problem, q, gradients.keys, gradients.key_beta,
                                       plans.first().MaxTileKeys());
  for (size_t i = 0; i < plans.first().key_tiles().size(); ++i)
    AccumulateKeyTile(call, static_cast<int64_t>(i), accumulator);
  StoreQuerySums(call, gradients.dq, gradients.dq_beta);
}

}  // namespace weft
