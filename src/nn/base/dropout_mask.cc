#include "src/nn/base/dropout_mask.h"

#include <array>
#include <cmath>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "src/nn/base/sequence_runs.h"
#include "src/nn/base/shapes.h"
#include "src/nn/kernels/philox.h"
#include "src/nn/products/element.h"
#include "weft/core/hash.h"
#include "weft/core/parallel.h"
#include "weft/core/rounding.h"
#include "weft/core/status.h"

namespace weft {
namespace {

// Elements per Philox block.
constexpr int64_t kBlock = 4;

// The values that a mask depends on, beside the column.
struct RowKey {
  std::array<uint32_t, 2> pass;  // A hash of seed, step and module.
  uint32_t sample;
  uint32_t document;
  uint32_t position;
};

// Elements whose random number is below `zero_below` become zero, others are multiplied by `factor`.
struct Mask {
  uint64_t zero_below;
  float factor;
};

// Draws the factors of a row, in whole blocks.
void DrawRow(const RowKey& key, Mask mask, std::vector<float>& factors) {
  float* __restrict factor = factors.data();
  const auto blocks = static_cast<int64_t>(factors.size()) / kBlock;
  for (int64_t block = 0; block < blocks; ++block) {
    const auto numbers =
        Philox4x32({static_cast<uint32_t>(block), key.position, key.document, key.sample}, key.pass);
    for (const uint32_t number : numbers) *factor++ = number < mask.zero_below ? 0.0F : mask.factor;
  }
}

template <typename T>
void ApplyToRow(const float* __restrict factors, const T* __restrict x, int64_t columns, T* __restrict y) {
  for (int64_t i = 0; i < columns; ++i) {
    const T value = Round<T>(Load(x[i]) * factors[i]);
    y[i] = factors[i] == 0.0F ? T{} : value;
  }
}

// Document and position of each token in a row of the batch, as far as a mask depends on them. `sample`: of a
// pack.
struct TokenKey {
  uint32_t sample, document, position;
};

absl::StatusOr<std::vector<TokenKey>> TokenKeys(const TokenRuns& runs, const RandomKey& random,
                                                const std::string& name) {
  std::vector<TokenKey> keys;
  for (const TokenRun& run : runs) {
    RandomKey::Document document{0, run.document};
    if (const auto count = static_cast<int64_t>(random.documents.size()); count > 0) {
      if (run.document >= count) {
        return absl::InvalidArgumentError(absl::StrCat(name, ": the sequence has a document ", run.document,
                                                       ", but the random key has ", count,
                                                       " documents; give it all of the sequence"));
      }
      document = random.documents[static_cast<size_t>(run.document)];
    }
    for (int64_t i = 0; i < run.count; ++i) {
      keys.push_back({static_cast<uint32_t>(document.sample), static_cast<uint32_t>(document.number),
                      static_cast<uint32_t>(run.position + i)});
    }
  }
  return keys;
}

absl::Status CheckKey(const Invocation& invocation, const std::string& name, const Tensor& x) {
  if (!invocation.random_key().has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat(name,
                     ": the pass has gradients but no random key; call Invocation::SetRandomKey, or "
                     "set the probability to 0"));
  }
  if (!invocation.random_key()->documents.empty()) {
    if (x.shape().size() >= 3 && x.dim(0) == 1) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        name,
        ": the random key has the documents of a pack, which is one row [1, tokens, ...], but the input is [",
        absl::StrJoin(x.shape(), ", "), "]; give the key `samples` alone"));
  }
  const auto samples = static_cast<int64_t>(invocation.random_key()->samples.size());
  if (x.shape().size() >= 2 && samples == x.dim(0)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": the batch has ", x.dim(0), " rows, the random key ",
                                                 samples,
                                                 " samples; give each row the number of its sample"));
}

}  // namespace

bool DropsElements(const Invocation& invocation, float probability) {
  const bool is_evaluation = !invocation.gradients() && !invocation.random_key().has_value();
  return probability != 0.0F && !is_evaluation;
}

absl::StatusOr<Tensor> DropElements(const Invocation& invocation, const std::string& name, float probability,
                                    const Tensor& x) {
  WEFT_ASSIGN_OR_RETURN(const Tensors dropped, DropElements(invocation, name, probability, Tensors{x}));
  return dropped[0];
}

absl::StatusOr<Tensors> DropElements(const Invocation& invocation, const std::string& name, float probability,
                                     const Tensors& tensors) {
  const Tensor& x = tensors[0];
  WEFT_RETURN_IF_ERROR(CheckKey(invocation, name, x));
  const RandomKey& random = *invocation.random_key();
  const bool has_tokens = x.shape().size() > 2;
  WEFT_ASSIGN_OR_RETURN(const TokenRuns runs,
                        has_tokens ? SequenceRuns(invocation, x.dim(1), name) : WholeSequence(1));
  WEFT_ASSIGN_OR_RETURN(const std::vector<TokenKey> tokens, TokenKeys(runs, random, name));
  const auto tokens_per_row = static_cast<int64_t>(tokens.size());
  const int64_t rows = x.dim(0) * tokens_per_row;
  const int64_t columns = rows == 0 ? 0 : x.elements() / rows;
  const uint64_t pass =
      HashCombine(HashCombine(random.seed, static_cast<uint64_t>(random.step)), Hash64(name));
  const Mask mask = {static_cast<uint64_t>(std::llround(static_cast<double>(probability) * 0x1p32)),
                     1.0F / (1.0F - probability)};
  const bool is_pack = !random.documents.empty();
  Tensors dropped;
  for (const Tensor& tensor : tensors) dropped.push_back(Tensor::Empty(tensor.dtype(), tensor.shape()));
  ParallelFor(rows, RowGrain(columns), [&](int64_t begin, int64_t end) {
    std::vector<float> factors(static_cast<size_t>(RoundUp(columns, kBlock)));
    for (int64_t row = begin; row < end; ++row) {
      const TokenKey& token = tokens[static_cast<size_t>(row % tokens_per_row)];
      const int64_t sample =
          is_pack ? token.sample : random.samples[static_cast<size_t>(row / tokens_per_row)];
      const RowKey key = {{static_cast<uint32_t>(pass), static_cast<uint32_t>(pass >> 32)},
                          static_cast<uint32_t>(sample),
                          token.document,
                          token.position};
      DrawRow(key, mask, factors);
      for (size_t i = 0; i < tensors.size(); ++i) {
        WithElementType(tensors[i].dtype(), [&](auto element) {
          using T = decltype(element);
          const int64_t at = row * columns;
          ApplyToRow(factors.data(), tensors[i].As<T>() + at, columns, dropped[i].As<T>() + at);
        });
      }
    }
  });
  return dropped;
}

}  // namespace weft
