// Parses the speeds that flags give: of links between hosts, and of the computation of a core.
#include <cmath>
#include <optional>
#include <utility>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>
#include <absl/types/span.h>

#include "src/train/config/flag_error.h"
#include "weft/train/planner.h"

namespace weft {
namespace {

// Limits of the links that the planner can simulate.
constexpr double kMinGigabits = 1e-3;
constexpr double kMaxGigabits = 1e6;
constexpr double kMaxLatencyUs = 1e6;

struct Suffix {
  const char* text;
  double factor;
};

// Parses a positive number with one of the suffixes. Returns it times the factor of the suffix.
std::optional<double> ParseQuantity(absl::string_view text, absl::Span<const Suffix> suffixes) {
  for (const Suffix& suffix : suffixes) {
    absl::string_view number = text;
    double value = 0;
    if (!absl::ConsumeSuffix(&number, suffix.text) || !absl::SimpleAtod(number, &value)) continue;
    if (value > 0 && std::isfinite(value)) return value * suffix.factor;
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<LinkSpeed> LinkSpeed::Parse(std::string_view text) {
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(absl::string_view(text.data(), text.size()), absl::MaxSplits(':', 1));
  const auto speed = ParseQuantity(parts.first, {{"gbit", 1}, {"mbit", 1e-3}});
  const auto latency =
      parts.second.empty() ? LinkSpeed().latency_us : ParseQuantity(parts.second, {{"us", 1}, {"ms", 1e3}});
  if (!speed || !latency) {
    return BadFlag("link", std::string(text),
                   "must be a rate and a latency, such as 100gbit:5us or 1gbit:50us");
  }
  if (*speed < kMinGigabits || *speed > kMaxGigabits || *latency > kMaxLatencyUs) {
    return BadFlag("link", std::string(text),
                   "can have a rate from 1mbit to 1000000gbit, and a latency of at most 1000ms");
  }
  return LinkSpeed{*speed, *latency};
}

std::string LinkSpeed::ToString() const { return absl::StrCat(gigabits, " Gbit/s and ", latency_us, " us"); }

absl::StatusOr<double> ParseFlops(std::string_view text) {
  const auto flops = ParseQuantity(absl::string_view(text.data(), text.size()), {{"tf", 1e12}, {"gf", 1e9}});
  if (flops) return *flops;
  return BadFlag("flops", std::string(text), "must be operations a second of a core, such as 80gf or 2tf");
}

}  // namespace weft
