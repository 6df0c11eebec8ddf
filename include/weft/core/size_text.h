// Numbers of bytes, and counts of things, as text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

namespace weft {

// "512 B", "1.5 MiB", "300 GiB": at most one decimal, and none from 100 on.
inline std::string SizeText(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1023.5 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  const int decimals = unit == 0 || value >= 99.95 ? 0 : 1;
  return absl::StrFormat("%.*f %s", decimals, value, kUnits[unit]);
}

// "1 rank", "2 ranks".
template <typename Number>
std::string Count(Number count, const char* thing) {
  return absl::StrCat(count, " ", thing, count == 1 ? "" : "s");
}

}  // namespace weft
