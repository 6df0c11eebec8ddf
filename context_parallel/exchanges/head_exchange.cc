#include "context_parallel/exchanges/head_exchange.h"

#include <numeric>
#include <utility>

#include "weft/core/add_run.h"
#include "weft/core/status.h"
#include "weft/core/strided_copy.h"
#include "weft/memory/pool_tensor.h"

namespace weft {
namespace {

constexpr int kTokens = 1;  // Dims of [batch, tokens, heads, dim].
constexpr int kHeads = 2;

std::vector<TensorView> HeadViews(const TensorView& local, const std::vector<HeadRange>& heads) {
  std::vector<TensorView> views;
  views.reserve(heads.size());
  for (const HeadRange& range : heads) views.push_back(local.Slice(kHeads, range.begin, range.count));
  return views;
}

// Where each rank's heads lie when they are put end to end instead of on top of each other.
std::vector<HeadRange> EndToEnd(const std::vector<HeadRange>& heads) {
  std::vector<HeadRange> apart;
  int64_t at = 0;
  for (const HeadRange& range : heads) {
    apart.push_back({at, range.count});
    at += range.count;
  }
  return apart;
}

// local[head] = the sum of what ranks have brought for it, in rank order.
void SumHeads(const Tensor& apart, const std::vector<HeadRange>& heads, const Tensor& local) {
  const int64_t dim = local.dim(3);
  const int64_t rows = local.dim(0) * local.dim(1);
  const auto* source = apart.As<float>();
  auto* target = local.As<float>();
  for (int64_t row = 0; row < rows;
       ++row, source += apart.dim(kHeads) * dim, target += local.dim(kHeads) * dim) {
    const float* brought = source;
    int64_t written = 0;  // Heads below have a sum already.
    for (const HeadRange& range : heads) {
      for (int64_t head = range.begin; head < range.end(); ++head, brought += dim) {
        if (head < written) {
          AddRun(brought, DType::kF32, target + head * dim, DType::kF32, dim);
        } else {
          std::copy_n(brought, dim, target + head * dim);
          written = head + 1;
        }
      }
    }
  }
}

}  // namespace

std::vector<TensorView> HeadExchange::TokenViews(const TensorView& gathered, const Cut& cut) const {
  std::vector<TensorView> views;
  views.reserve(cut.tokens.size());
  int64_t begin = 0;
  for (const int64_t count : cut.tokens) {
    views.push_back(gathered.Slice(kTokens, begin, count));
    begin += count;
  }
  return views;
}

absl::StatusOr<PendingTensor> HeadExchange::ToHeads(const Tensor& local, const Cut& cut,
                                                    OpOptions options) const {
  const int64_t tokens = std::accumulate(cut.tokens.begin(), cut.tokens.end(), int64_t{0});
  WEFT_ASSIGN_OR_RETURN(
      Tensor gathered,
      PoolTensor(*pool_, local.dtype(), {local.dim(0), tokens, cut.heads[me()].count, local.dim(3)}));
  Work work = engine_->AllToAll(lane_, HeadViews(local.view(), cut.heads), TokenViews(gathered.view(), cut),
                                local.dtype(), std::move(options));
  return PendingTensor(std::move(gathered), std::move(work), {local});
}

absl::StatusOr<PendingTensor> HeadExchange::ToTokens(PendingTensor gathered, int64_t heads, const Cut& cut,
                                                     OpOptions options) const {
  const Tensor source = gathered.result();
  const DType dtype = source.dtype();
  const bool sums = Overlap(cut.heads);
  WEFT_CHECK(!sums || dtype == DType::kF32, "sums of heads in another dtype than f32");
  const std::vector<HeadRange> places = sums ? EndToEnd(cut.heads) : cut.heads;
  const Shape local = {source.dim(0), cut.tokens[me()], heads, source.dim(3)};
  Shape brought = local;
  if (sums) brought[kHeads] = places.back().end();
  WEFT_ASSIGN_OR_RETURN(Tensor target, PoolTensor(*pool_, dtype, brought));
  Work work = engine_->AllToAll(lane_, TokenViews(source.view(), cut), HeadViews(target.view(), places),
                                dtype, std::move(options), gathered.work());
  gathered.Follow(std::move(target), std::move(work));
  if (sums) {
    gathered.FinishWith([local, ranges = cut.heads](const Tensor& apart) -> absl::StatusOr<Tensor> {
      Tensor sum = Tensor::Empty(DType::kF32, local);
      SumHeads(apart, ranges, sum);
      return sum;
    });
  }
  return gathered;
}

}  // namespace weft
