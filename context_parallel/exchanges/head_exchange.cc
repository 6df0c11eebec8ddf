#include "context_parallel/exchanges/head_exchange.h"

#include <numeric>
#include <utility>

#include "weft/core/add_run.h"
#include "weft/core/status.h"
#include "weft/core/strided_copy.h"
#include "weft/memory/pool_tensor.h"

namespace weft {
namespace {

// Dims of [batch, tokens, heads, dim].
constexpr int kTokens = 1;
constexpr int kHeads = 2;

std::vector<TensorView> HeadViews(const TensorView& local, const std::vector<HeadRange>& heads) {
  std::vector<TensorView> views;
  views.reserve(heads.size());
  for (const HeadRange& range : heads) views.push_back(local.Slice(kHeads, range.begin, range.count));
  return views;
}

// Ranges of the ranks' heads, end to end, so that heads of several ranks do not overlap.
std::vector<HeadRange> EndToEnd(const std::vector<HeadRange>& heads) {
  std::vector<HeadRange> ranges;
  int64_t begin = 0;
  for (const HeadRange& range : heads) {
    ranges.push_back({begin, range.count});
    begin += range.count;
  }
  return ranges;
}

// Adds the heads that several ranks have sent, in rank order. `received`: [batch, tokens, heads of all ranks,
// dim]; `local`: [batch, tokens, heads, dim].
void SumHeads(const Tensor& received, const std::vector<HeadRange>& heads, const Tensor& local) {
  const int64_t dim = local.dim(3);
  const int64_t rows = local.dim(0) * local.dim(1);
  const auto* source = received.As<float>();
  auto* target = local.As<float>();
  for (int64_t row = 0; row < rows;
       ++row, source += received.dim(kHeads) * dim, target += local.dim(kHeads) * dim) {
    const float* addend = source;
    int64_t written = 0;  // Heads below are initialized.
    for (const HeadRange& range : heads) {
      for (int64_t head = range.begin; head < range.end(); ++head, addend += dim) {
        if (head < written) {
          AddRun(addend, DType::kF32, target + head * dim, DType::kF32, dim);
        } else {
          std::copy_n(addend, dim, target + head * dim);
          written = head + 1;
        }
      }
    }
  }
}

}  // namespace

std::vector<TensorView> HeadExchange::TokenViews(const TensorView& gathered, const Partition& partition) {
  std::vector<TensorView> views;
  views.reserve(partition.tokens.size());
  int64_t begin = 0;
  for (const int64_t count : partition.tokens) {
    views.push_back(gathered.Slice(kTokens, begin, count));
    begin += count;
  }
  return views;
}

absl::StatusOr<PendingTensor> HeadExchange::GatherTokens(const Tensor& local, const Partition& partition,
                                                         OpOptions options) const {
  const int64_t tokens = std::accumulate(partition.tokens.begin(), partition.tokens.end(), int64_t{0});
  WEFT_ASSIGN_OR_RETURN(
      Tensor gathered,
      PoolTensor(*pool_, local.dtype(), {local.dim(0), tokens, partition.heads[rank()].count, local.dim(3)}));
  Work work = engine_->AllToAll(lane_, HeadViews(local.view(), partition.heads),
                                TokenViews(gathered.view(), partition), local.dtype(), std::move(options));
  return PendingTensor(std::move(gathered), std::move(work), {local});
}

absl::StatusOr<PendingTensor> HeadExchange::GatherHeads(PendingTensor gathered, int64_t heads,
                                                        const Partition& partition, OpOptions options) const {
  const Tensor source = gathered.result();
  const DType dtype = source.dtype();
  const bool sums = Overlap(partition.heads);
  WEFT_CHECK(!sums || dtype == DType::kF32, "heads are summed in f32 only");
  const std::vector<HeadRange> places = sums ? EndToEnd(partition.heads) : partition.heads;
  const Shape local = {source.dim(0), partition.tokens[rank()], heads, source.dim(3)};
  Shape received_shape = local;
  if (sums) received_shape[kHeads] = places.back().end();
  WEFT_ASSIGN_OR_RETURN(Tensor target, PoolTensor(*pool_, dtype, received_shape));
  Work work = engine_->AllToAll(lane_, TokenViews(source.view(), partition), HeadViews(target.view(), places),
                                dtype, std::move(options), gathered.work());
  gathered.Follow(std::move(target), std::move(work));
  if (sums) {
    gathered.FinishWith([local, ranges = partition.heads](const Tensor& received) -> absl::StatusOr<Tensor> {
      Tensor sum = Tensor::Empty(DType::kF32, local);
      SumHeads(received, ranges, sum);
      return sum;
    });
  }
  return gathered;
}

}  // namespace weft
