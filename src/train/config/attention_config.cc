// Sparse attention's flags: defaults and validation.
#include <limits>
#include <vector>

#include <absl/strings/str_cat.h>

#include "src/train/config/flag_error.h"
#include "weft/core/status.h"
#include "weft/train/config.h"

namespace weft {
namespace {

struct Flag {
  const char* name;
  std::optional<int64_t> value;
  int64_t least;
  int64_t most;
};

// Without sparse attention its flags have no meaning, so they are errors.
absl::Status ValidateDense(const AttentionConfig& attention, const std::vector<Flag>& flags) {
  constexpr const char* kRemedy = "needs --attention dsa: add it, or leave this flag out";
  for (const Flag& flag : flags) {
    if (flag.value) return BadFlag(flag.name, *flag.value, kRemedy);
  }
  return attention.loss_coef ? BadFlag("dsa-loss-coef", *attention.loss_coef, kRemedy) : absl::OkStatus();
}

absl::Status ValidateSizes(const AttentionConfig& attention, const std::vector<Flag>& flags) {
  for (const Flag& flag : flags) {
    if (!flag.value || (*flag.value >= flag.least && *flag.value <= flag.most)) continue;
    return BadFlag(flag.name, *flag.value, absl::StrCat("must be from ", flag.least, " to ", flag.most));
  }
  if (attention.index_dim && *attention.index_dim % 2 != 0) {
    return BadFlag("dsa-index-dim", *attention.index_dim, "must be even: rotary embedding turns pairs");
  }
  const double loss_coef = attention.loss_coef.value_or(0);
  // It becomes a float.
  return loss_coef >= 0 && loss_coef <= std::numeric_limits<float>::max()
             ? absl::OkStatus()
             : BadFlag("dsa-loss-coef", loss_coef, "must be 0 or a positive number in the range of float");
}

// The selection needs the scores of all keys, which gathers alone bring to a rank.
absl::Status ValidateGather(const ContextOptions& context) {
  constexpr const char* kRemedy =
      "--attention dsa selects among the keys of all ranks, which only a gather brings together: use "
      "--cp-scheme gather, or --attention dense";
  if (context.scheme != CpScheme::kAuto && context.scheme != CpScheme::kGather) {
    return BadFlag("cp-scheme", ToAbsl(Name(context.scheme)), kRemedy);
  }
  if (context.ulysses_degree.value_or(1) != 1) {
    return BadFlag("ulysses-degree", *context.ulysses_degree, kRemedy);
  }
  return context.load_balance != LoadBalance::kQueryExchange
             ? absl::OkStatus()
             : BadFlag("load-balance", ToAbsl(Name(*context.load_balance)),
                       "is for dense attention only: use head-tail or none, or --attention dense");
}

}  // namespace

std::string_view Name(AttentionKind kind) { return kind == AttentionKind::kDense ? "dense" : "dsa"; }

std::optional<SparseAttentionConfig> AttentionConfig::sparse_config() const {
  if (!is_sparse()) return std::nullopt;
  SparseAttentionConfig config;
  config.top_k = top_k.value_or(config.top_k);
  config.index_heads = index_heads.value_or(config.index_heads);
  config.index_dim = index_dim.value_or(config.index_dim);
  return config;
}

std::optional<IndexerTraining> AttentionConfig::indexer_training() const {
  if (!is_sparse()) return std::nullopt;
  IndexerTraining training;
  training.warmup_steps = warmup_steps.value_or(training.warmup_steps);
  training.loss_coef = loss_coef.value_or(training.loss_coef);
  return training;
}

absl::Status Validate(const AttentionConfig& attention, const ContextOptions& context) {
  const std::vector<Flag> flags = {{"dsa-topk", attention.top_k, 1, LlamaLimits::kPositions},
                                   {"dsa-index-heads", attention.index_heads, 1, LlamaLimits::kWidth},
                                   {"dsa-index-dim", attention.index_dim, 2, LlamaLimits::kWidth},
                                   {"dsa-warmup-steps", attention.warmup_steps, 0, kMaxCount}};
  if (!attention.is_sparse()) return ValidateDense(attention, flags);
  WEFT_RETURN_IF_ERROR(ValidateSizes(attention, flags));
  return context.size == 1 ? absl::OkStatus() : ValidateGather(context);
}

}  // namespace weft
