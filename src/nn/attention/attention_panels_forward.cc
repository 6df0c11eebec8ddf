#include <algorithm>
#include <cmath>
#include <vector>

#include "src/nn/attention/attention_panels.h"
#include "src/nn/attention/head_rows.h"
#include "src/nn/attention/masked_row.h"
#include "src/nn/attention/packed_heads.h"
#include "src/nn/attention/score_strips.h"
#include "src/nn/attention/tile_strips.h"
#include "src/nn/products/element.h"
#include "src/nn/products/scratch.h"
#include "weft/core/parallel.h"
#include "weft/core/topology.h"

namespace weft {
namespace {

using panels::kPanel;
using panels::kProductFloats;

// Keys and values of a key block.
struct ForwardKeys {
  explicit ForwardKeys(const KeyBlock& block)
      : k(panels::Operand::kA, PackedHeads::Lines::kTokens, block.k),
        v(panels::Operand::kA, PackedHeads::Lines::kDims, block.v) {}

  PackedHeads k, v;
};

// Arguments of one AttentionForwardByPanels, shared by all row blocks.
struct ForwardCall {
  const panels::PanelUnit& unit;
  const AttentionProblem& problem;
  const BatchPlans& plans;
  TileSize size;
  const PackedHeads& q;
  const std::vector<ForwardKeys>& keys;
  int64_t head_blocks;   // K blocks of head_dim.
  int64_t value_panels;  // Panels of value_dim.
  const TensorView& out;
  const TensorView& lse;
};

// Forward of one row block of one head over all keys.
class RowBlockForward {
 public:
  RowBlockForward(const ForwardCall& call, int64_t batch, int64_t head, int64_t row_block)
      : call_(call),
        plan_(call.plans.Of(batch)),
        batch_(batch),
        head_(head),
        row_block_(row_block),
        first_row_(plan_.FirstRow(row_block)),
        rows_(plan_.RowsOf(row_block)),
        strips_(PanelsOf(rows_)) {
    static thread_local Scratch score_memory;
    static thread_local Scratch weight_memory;
    static thread_local Scratch row_memory;
    const int64_t key_panels = PanelsOf(call.size.columns);
    scores_ = score_memory.Floats(key_panels * kProductFloats);
    weights_ = static_cast<uint32_t*>(
        weight_memory.Bytes(static_cast<size_t>(key_panels * panels::kBlockWords) * sizeof(uint32_t)));
    out_ = row_memory.Floats(strips_ * (call.value_panels * kProductFloats + 2 * kPanel));
    maximum_ = out_ + strips_ * call.value_panels * kProductFloats;
    sum_ = maximum_ + strips_ * kPanel;
  }

  void Run() {
    std::fill_n(maximum_, strips_ * kPanel, kMaskedScore);
    std::fill_n(sum_, strips_ * kPanel, 0.0F);
    if (!plan_.InitializesRows(row_block_))
      std::fill_n(out_, strips_ * call_.value_panels * kProductFloats, 0.0F);
    for (const AttentionTile& tile : plan_.TilesOf(row_block_)) AddTile(tile);
    Store();
  }

 private:
  float* OutOf(int64_t strip) const { return out_ + strip * call_.value_panels * kProductFloats; }

  void AddTile(const AttentionTile& tile) {
    CheckAlignment(tile);
    const ForwardKeys& keys = call_.keys[static_cast<size_t>(plan_.BlockOf(tile))];
    for (int64_t row = 0; row < tile.rows; row += kPanel) AddStrip(tile, row, keys);
  }

  void AddStrip(const AttentionTile& tile, int64_t row, const ForwardKeys& keys) {
    static thread_local std::vector<uint16_t> bits;
    const int64_t kv_head = KvHead(call_.problem, head_);
    const int64_t key_panels = PanelsOf(tile.columns);
    const int64_t first_panel = tile.first_key / kPanel;
    const int64_t strip = (tile.first_row + row - first_row_) / kPanel;
    const uint32_t* q = call_.q.At(batch_, head_, (tile.first_row + row) / kPanel, 0);
    for (int64_t panel = 0; panel < key_panels; ++panel) {
      call_.unit.multiply(keys.k.At(batch_, kv_head, first_panel + panel, 0), q, call_.head_blocks,
                          /*continues=*/false, scores_ + panel * kProductFloats);
    }
    float corrections[kPanel];
    panels::SoftmaxOfStrip({scores_, key_panels, VisibleBits(plan_, tile, row, bits), call_.problem.scale},
                           {maximum_ + strip * kPanel, sum_ + strip * kPanel}, corrections, weights_);
    if (!tile.initializes_rows) panels::ScaleColumnsOfProducts(OutOf(strip), call_.value_panels, corrections);
    for (int64_t panel = 0; panel < call_.value_panels; ++panel) {
      call_.unit.multiply(keys.v.At(batch_, kv_head, panel, first_panel), weights_, key_panels,
                          /*continues=*/!tile.initializes_rows, OutOf(strip) + panel * kProductFloats);
    }
  }

  void Store() const {
    static thread_local Scratch unpacked;
    const int64_t width = call_.value_panels * kPanel;
    float* values = unpacked.Floats(kPanel * width);
    for (int64_t strip = 0; strip < strips_; ++strip) {
      panels::UnpackColumns(OutOf(strip), kProductFloats, call_.value_panels, values);
      StoreStrip(strip * kPanel, values, width);
    }
    float* lse = StatisticsOf(call_.lse, batch_, head_) + first_row_;
    for (int64_t row = 0; row < rows_; ++row)
      lse[row] = maximum_[row] * call_.problem.scale + std::log(sum_[row]);
  }

  // Writes the strip's rows, from `first` on, divided by their sums.
  void StoreStrip(int64_t first, const float* values, int64_t width) const {
    WithElementType(call_.out.dtype, [&](auto element) {
      using Out = decltype(element);
      const HeadRows<Out> out = HeadOf<Out>(call_.out, batch_, head_).Skip(first_row_ + first);
      const int64_t value_dim = call_.out.shape[3];  // A local constant, so that the loop vectorizes.
      for (int64_t row = 0; row < std::min(kPanel, rows_ - first); ++row) {
        const float sum = sum_[first + row];
        const float inverse = sum > 0.0F ? 1.0F / sum : 0.0F;
        const float* __restrict from = values + row * width;
        Out* __restrict target = out.Row(row);
        for (int64_t i = 0; i < value_dim; ++i) target[i] = Round<Out>(from[i] * inverse);
      }
    });
  }

  const ForwardCall& call_;
  const AttentionPlan& plan_;
  int64_t batch_, head_, row_block_, first_row_, rows_, strips_;
  float* scores_;          // [panels of keys][kProductFloats] of a strip.
  uint32_t* weights_;      // A panel of B.
  float* out_;             // [strips][panels of values][kProductFloats]
  float *maximum_, *sum_;  // Of the scores before their scale, and of the weights.
};

}  // namespace

bool PacksAttention(DType dtype) { return dtype == DType::kBF16 && panels::FastestPanelUnit() != nullptr; }

const panels::PanelUnit* AttentionUnit(const TensorView& q) {
  // With fewer queries, packing the keys takes longer than their products.
  constexpr int64_t kFewestQueries = 32;
  return PacksAttention(q.dtype) && q.shape[1] >= kFewestQueries ? panels::FastestPanelUnit() : nullptr;
}

void AttentionForwardByPanels(const panels::PanelUnit& unit, const AttentionProblem& problem,
                              const TensorView& q, const TokenRuns& q_runs, absl::Span<const KeyBlock> keys,
                              const TensorView& out, const TensorView& lse) {
  const TileSize size = TileSizeFor(HostTopology().core_cache_bytes);
  const BatchPlans plans(problem.mask, problem.pair_mask.get(), q.shape[0], q_runs, RunsOf(keys), size,
                         AttentionPlan::Order::kByRowBlock);
  const PackedHeads packed_q(panels::Operand::kB, PackedHeads::Lines::kTokens, q);
  const std::vector<ForwardKeys> packed_keys(keys.begin(), keys.end());
  const ForwardCall call = {
      unit, problem, plans, size, packed_q, packed_keys, PanelsOf(q.shape[3]), PanelsOf(out.shape[3]),
      out,  lse};
  const int64_t heads = q.shape[2];
  const int64_t row_blocks = plans.first().row_blocks();
  ParallelFor(q.shape[0] * heads * row_blocks, 1, [&](int64_t begin, int64_t end) {
    const panels::PanelScope scope(unit);
    for (int64_t item = begin; item < end; ++item) {
      RowBlockForward(call, item / row_blocks / heads, item / row_blocks % heads, item % row_blocks).Run();
    }
  });
}

}  // namespace weft
