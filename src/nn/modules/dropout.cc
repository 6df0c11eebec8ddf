#include "weft/nn/dropout.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "src/nn/base/module_checks.h"
#include "src/nn/base/sequence_runs.h"
#include "src/nn/kernels/philox.h"
#include "src/nn/products/element.h"
#include "weft/core/hash.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

// Elements per Philox block.
constexpr int64_t kBlock = 4;

// The values that a mask depends on, beside the column.
struct RowKey {
  std::array<uint32_t, 2> pass;  // Of seed, step and module.
  uint32_t sample;
  uint32_t document;
  uint32_t position;
};

// Elements whose random number is below `zero_below` become zero, others are multiplied by `factor`.
struct Mask {
  uint64_t zero_below;
  float factor;
};

template <typename T>
void ApplyToRow(const RowKey& key, Mask mask, const T* __restrict x, int64_t columns, T* __restrict y) {
  for (int64_t column = 0; column < columns; column += kBlock) {
    const auto numbers = Philox4x32(
        {static_cast<uint32_t>(column / kBlock), key.position, key.document, key.sample}, key.pass);
    const int64_t count = std::min(kBlock, columns - column);
    for (int64_t i = 0; i < count; ++i) {
      const float factor = numbers[static_cast<size_t>(i)] < mask.zero_below ? 0.0F : mask.factor;
      y[column + i] = factor == 0.0F ? T{} : Round<T>(Load(x[column + i]) * factor);
    }
  }
}

// Document and position of each token in a row of the batch, as far as a mask depends on them.
struct TokenKey {
  uint32_t document, position;
};

std::vector<TokenKey> TokenKeys(const TokenRuns& runs) {
  std::vector<TokenKey> keys;
  for (const TokenRun& run : runs) {
    for (int64_t i = 0; i < run.count; ++i) {
      keys.push_back({static_cast<uint32_t>(run.document), static_cast<uint32_t>(run.position + i)});
    }
  }
  return keys;
}

}  // namespace

absl::Status Dropout::CheckKey(const Invocation& invocation, const Tensor& x) const {
  WEFT_RETURN_IF_ERROR(CheckActivation(*this, x, 2));
  if (!invocation.random_key().has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat(name(),
                     ": the pass has gradients but no random key; call Invocation::SetRandomKey, or "
                     "set the probability to 0"));
  }
  if (const size_t samples = invocation.random_key()->samples.size();
      static_cast<int64_t>(samples) != x.dim(0)) {
    return absl::InvalidArgumentError(absl::StrCat(name(), ": the batch has ", x.dim(0),
                                                   " rows, the random key ", samples,
                                                   " samples; give each row the number of its sample"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensors> Dropout::ApplyMask(const Invocation& invocation, const Tensor& x) const {
  const RandomKey& random = *invocation.random_key();
  const bool has_tokens = x.shape().size() > 2;
  WEFT_ASSIGN_OR_RETURN(const TokenRuns runs,
                        has_tokens ? SequenceRuns(invocation, x.dim(1), name()) : WholeSequence(1));
  const std::vector<TokenKey> tokens = TokenKeys(runs);
  const auto tokens_per_row = static_cast<int64_t>(tokens.size());
  const int64_t rows = x.dim(0) * tokens_per_row;
  const int64_t columns = rows == 0 ? 0 : x.elements() / rows;
  const uint64_t pass =
      HashCombine(HashCombine(random.seed, static_cast<uint64_t>(random.step)), Hash64(name()));
  const Mask mask = {static_cast<uint64_t>(std::llround(static_cast<double>(probability_) * 0x1p32)),
                     1.0F / (1.0F - probability_)};
  Tensor y = Tensor::Empty(x.dtype(), x.shape());
  WithElementType(x.dtype(), [&](auto element) {
    using T = decltype(element);
    ParallelFor(rows, RowGrain(columns), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const TokenKey& token = tokens[static_cast<size_t>(row % tokens_per_row)];
        const int64_t sample = random.samples[static_cast<size_t>(row / tokens_per_row)];
        const RowKey key = {{static_cast<uint32_t>(pass), static_cast<uint32_t>(pass >> 32)},
                            static_cast<uint32_t>(sample),
                            token.document,
                            token.position};
        ApplyToRow(key, mask, x.As<T>() + row * columns, columns, y.As<T>() + row * columns);
      }
    });
  });
  return Tensors{std::move(y)};
}

absl::StatusOr<Tensors> Dropout::ForwardImpl(Invocation& invocation, const Tensors& inputs) {
  WEFT_RETURN_IF_ERROR(CheckInputCount(*this, inputs, 1));
  if (!(probability_ >= 0.0F && probability_ < 1.0F)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name(), ": the probability is ", probability_, ", but must be at least 0 and below 1"));
  }
  const bool is_evaluation = !invocation.gradients() && !invocation.random_key().has_value();
  if (probability_ == 0.0F || is_evaluation) return inputs;
  WEFT_RETURN_IF_ERROR(CheckKey(invocation, inputs[0]));
  invocation.Save(this, {});  // Without tensors: marks that a backward must follow.
  return ApplyMask(invocation, inputs[0]);
}

absl::StatusOr<Tensors> Dropout::BackwardImpl(Invocation& invocation, const Tensors& output_gradients) {
  WEFT_RETURN_IF_ERROR(CheckGradientCount(*this, output_gradients, 1));
  if (probability_ == 0.0F) return output_gradients;
  invocation.PopSaved(this);
  return ApplyMask(invocation, output_gradients[0]);
}

}  // namespace weft
