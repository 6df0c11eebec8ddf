// Validation of the context-parallel flags.
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "src/train/config/flag_error.h"
#include "weft/core/status.h"
#include "weft/train/config.h"

namespace weft {
namespace {

// Upper limit of --cp, above the size of any run. It fits an int, and the search for its divisors is fast.
constexpr int64_t kMaxRanks = 1 << 20;

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
      return bad(absl::StrCat("--cp-scheme ulysses splits heads over all ", size,
                              " ranks of --cp: leave the degree out, or use --cp-scheme hybrid"));
    case CpScheme::kGather:
    case CpScheme::kRing:
      if (degree == 1) return absl::OkStatus();
      return bad(
          absl::StrCat("--cp-scheme ", ToAbsl(Name(context.scheme)),
                       " does not split heads over ranks: leave the degree out, or use --cp-scheme hybrid"));
    case CpScheme::kHybrid:
      if (degree > 1 && degree < size) return absl::OkStatus();
      return bad(absl::StrCat("--cp-scheme hybrid is for degrees between 1 and --cp ", size,
                              ": use --cp-scheme ", degree == 1 ? "gather or ring" : "ulysses"));
  }
  return absl::OkStatus();
}

// With --cp 1 the other flags have no meaning, so they are errors.
absl::Status ValidateWithoutSplit(const ContextOptions& context) {
  constexpr const char* kNeedsRanks = "needs --cp of at least 2";
  if (context.scheme != CpScheme::kAuto) {
    return BadFlag("cp-scheme", ToAbsl(Name(context.scheme)), kNeedsRanks);
  }
  if (context.ulysses_degree) return BadFlag("ulysses-degree", *context.ulysses_degree, kNeedsRanks);
  if (context.ring_rotate) return BadFlag("ring-rotate", ToAbsl(Name(*context.ring_rotate)), kNeedsRanks);
  if (context.load_balance) return BadFlag("load-balance", ToAbsl(Name(*context.load_balance)), kNeedsRanks);
  return absl::OkStatus();
}

absl::Status ValidateBalance(const ContextOptions& context) {
  if (!context.load_balance.has_value()) return absl::OkStatus();
  const absl::string_view balance = ToAbsl(Name(*context.load_balance));
  const bool by_heads = context.scheme == CpScheme::kUlysses || context.ulysses_degree == context.size;
  if (context.load_balance == LoadBalance::kHeadTail && by_heads) {
    return BadFlag("load-balance", balance,
                   "Ulysses is balanced, because each rank has whole sequences of some heads: leave it out");
  }
  if (context.load_balance == LoadBalance::kQueryExchange && context.scheme != CpScheme::kGather) {
    return BadFlag("load-balance", balance,
                   absl::StrCat("needs --cp-scheme gather, not ", ToAbsl(Name(context.scheme)),
                                ": use that scheme, or another balance"));
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
  if (context.size < 1 || context.size > kMaxRanks) {
    return BadFlag("cp", context.size, absl::StrCat("must be from 1 to ", kMaxRanks));
  }
  if (context.size == 1) return ValidateWithoutSplit(context);
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
  return ValidateBalance(context);
}

}  // namespace weft
