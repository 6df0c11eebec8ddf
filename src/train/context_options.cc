// The flags that say how sequences are split: which of them go together.
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "src/train/flag_error.h"
#include "weft/core/status.h"
#include "weft/train/config.h"

namespace weft {
namespace {

bool HasRing(CpScheme scheme) { return scheme == CpScheme::kRing || scheme == CpScheme::kHybrid; }

std::vector<int64_t> DivisorsOf(int64_t number) {
  std::vector<int64_t> divisors;
  for (int64_t divisor = 1; divisor <= number; ++divisor) {
    if (number % divisor == 0) divisors.push_back(divisor);
  }
  return divisors;
}

absl::Status ValidateDegree(const ContextOptions& context, int64_t degree) {
  const int64_t size = context.size;
  const auto bad = [degree](const absl::AlphaNum& remedy) {
    return BadFlag("ulysses-degree", degree, remedy);
  };
  if (degree < 1 || size % degree != 0) {
    return bad(
        absl::StrCat("must divide --cp ", size, ": use one of ", absl::StrJoin(DivisorsOf(size), ", ")));
  }
  switch (context.scheme) {
    case CpScheme::kAuto:
      return absl::OkStatus();
    case CpScheme::kUlysses:
      if (degree == size) return absl::OkStatus();
      return bad(absl::StrCat("--cp-scheme ulysses spreads heads over all ", size,
                              " ranks of --cp: leave the degree out, or use --cp-scheme hybrid"));
    case CpScheme::kGather:
    case CpScheme::kRing:
      if (degree == 1) return absl::OkStatus();
      return bad(
          absl::StrCat("--cp-scheme ", ToAbsl(Name(context.scheme)),
                       " spreads no heads over ranks: leave the degree out, or use --cp-scheme hybrid"));
    case CpScheme::kHybrid:
      if (degree > 1 && degree < size) return absl::OkStatus();
      return bad(absl::StrCat("--cp-scheme hybrid is for degrees between 1 and --cp ", size,
                              ": use --cp-scheme ", degree == 1 ? "gather or ring" : "ulysses"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view Name(CpScheme scheme) {
  switch (scheme) {
    case CpScheme::kAuto:
      return "auto";
    case CpScheme::kUlysses:
      return "ulysses";
    case CpScheme::kGather:
      return "gather";
    case CpScheme::kHybrid:
      return "hybrid";
    case CpScheme::kRing:
      return "ring";
  }
  return "?";
}

absl::Status Validate(const ContextOptions& context) {
  if (context.size < 1) return BadFlag("cp", context.size, "must be at least 1");
  if (context.ulysses_degree.has_value()) {
    WEFT_RETURN_IF_ERROR(ValidateDegree(context, *context.ulysses_degree));
  }
  const absl::string_view scheme = ToAbsl(Name(context.scheme));
  if (context.scheme == CpScheme::kHybrid && DivisorsOf(context.size).size() == 2) {
    return BadFlag("cp-scheme", scheme,
                   absl::StrCat("--cp ", context.size,
                                " has no divisor between 1 and itself: use ulysses, gather or ring"));
  }
  if (context.ring_rotate.has_value() && !HasRing(context.scheme)) {
    return BadFlag("ring-rotate", ToAbsl(Name(*context.ring_rotate)),
                   absl::StrCat("--cp-scheme ", scheme,
                                " has no ring: leave it out, or use --cp-scheme ring or hybrid"));
  }
  const bool by_heads =
      context.scheme == CpScheme::kUlysses || (context.size > 1 && context.ulysses_degree == context.size);
  if (by_heads && context.load_balance == LoadBalance::kHeadTail) {
    return BadFlag("load-balance", ToAbsl(Name(*context.load_balance)),
                   "with Ulysses ranks have whole sequences of some heads, which is balanced: leave it out");
  }
  return absl::OkStatus();
}

}  // namespace weft
