#include "weft/core/dtype.h"

#include <array>

#include <absl/strings/str_join.h>

#include "weft/core/status.h"

namespace weft {
namespace {

constexpr std::array<std::string_view, 9> kNames = {"f32", "bf16", "f16", "i32", "i64",
                                                    "f64", "i16",  "i8",  "u8"};

}  // namespace

std::string_view Name(DType dtype) {
  const auto index = static_cast<size_t>(dtype);
  WEFT_CHECK(index < kNames.size(), "value outside the DType enumeration");
  return kNames[index];
}

absl::StatusOr<DType> ParseDType(std::string_view name) {
  const auto append = [](std::string* text, std::string_view known) { text->append(known); };
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<DType>(i);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown dtype '", ToAbsl(name), "': use one of ", absl::StrJoin(kNames, ", ", append)));
}

}  // namespace weft
