// Flags of low-rank adapters: defaults and validation.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include "src/train/config/flag_error.h"
#include "weft/core/status.h"
#include "weft/train/config.h"

namespace weft {
namespace {

// A flag of new adapters that is given beside --lora-adapter, or without --lora-rank.
absl::Status CheckUse(const LoraConfig& lora, const char* flag, bool given, const absl::AlphaNum& value) {
  if (!given) return absl::OkStatus();
  if (!lora.adapter.empty()) {
    return BadFlag(flag, value,
                   "the folder of --lora-adapter has rank, alpha, targets and dropout: leave this flag out");
  }
  return lora.rank ? absl::OkStatus()
                   : BadFlag(flag, value, "needs --lora-rank: add it, or leave this flag out");
}

std::vector<std::string> NamesOf(const std::string& targets) {
  std::vector<std::string> names = absl::StrSplit(targets, ',');
  for (std::string& name : names) absl::StripAsciiWhitespace(&name);
  return names;
}

}  // namespace

std::optional<LoraOptions> LoraConfig::new_adapters() const {
  if (!rank) return std::nullopt;
  LoraOptions options;
  options.rank = *rank;
  options.alpha = alpha.value_or(options.alpha);
  if (!targets.empty()) options.targets = NamesOf(targets);
  options.dropout = dropout.value_or(options.dropout);
  return options;
}

absl::Status Validate(const LoraConfig& lora) {
  WEFT_RETURN_IF_ERROR(CheckUse(lora, "lora-rank", lora.rank.has_value(), lora.rank.value_or(0)));
  WEFT_RETURN_IF_ERROR(CheckUse(lora, "lora-alpha", lora.alpha.has_value(), lora.alpha.value_or(0)));
  WEFT_RETURN_IF_ERROR(CheckUse(lora, "lora-targets", !lora.targets.empty(), lora.targets));
  WEFT_RETURN_IF_ERROR(CheckUse(lora, "lora-dropout", lora.dropout.has_value(), lora.dropout.value_or(0)));
  if (lora.rank && (*lora.rank < 1 || *lora.rank > LlamaLimits::kWidth)) {
    return BadFlag("lora-rank", *lora.rank, absl::StrCat("must be from 1 to ", LlamaLimits::kWidth));
  }
  if (lora.alpha && !(*lora.alpha > 0 && std::isfinite(static_cast<float>(*lora.alpha)))) {
    return BadFlag("lora-alpha", *lora.alpha, "must be a positive number in the range of float");
  }
  if (lora.dropout && !(*lora.dropout >= 0 && static_cast<float>(*lora.dropout) < 1)) {
    return BadFlag("lora-dropout", *lora.dropout, "must be at least 0 and below 1");
  }
  if (lora.targets.empty()) return absl::OkStatus();
  std::vector<std::string> names = NamesOf(lora.targets);
  if (std::find(names.begin(), names.end(), "") != names.end())
    return BadFlag("lora-targets", lora.targets, "has an empty name: write names with commas between them");
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return absl::OkStatus();
  return BadFlag("lora-targets", lora.targets, absl::StrCat("has ", *twice, " twice: write each name once"));
}

}  // namespace weft
