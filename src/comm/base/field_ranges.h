// Ranges of the enumerators and bools in structures that other ranks send as bytes, which are checked before
// the bytes become a structure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <absl/strings/str_cat.h>
#include <absl/types/span.h>

#include "weft/comm/types.h"

namespace weft {

// The greatest value of a field of this type. The least is 0.
template <typename Field>
extern const uint8_t kGreatest;
template <>
inline constexpr uint8_t kGreatest<bool> = 1;
template <>
inline constexpr auto kGreatest<OpKind> = static_cast<uint8_t>(OpKind::kReceive);
template <>
inline constexpr auto kGreatest<DType> = static_cast<uint8_t>(DType::kU8);
template <>
inline constexpr auto kGreatest<ReduceOp> = static_cast<uint8_t>(ReduceOp::kBitXor);
template <>
inline constexpr auto kGreatest<WireCompression> = static_cast<uint8_t>(WireCompression::kLossless);
template <>
inline constexpr auto kGreatest<ElementKind> = static_cast<uint8_t>(ElementKind::kBytes);

struct FieldRange {
  const char* name;
  size_t offset;
  uint8_t greatest;
};

// The first field of `bytes` that is out of range, such as "unknown dtype 77". Nothing if there is none.
inline std::optional<std::string> UnknownField(absl::Span<const FieldRange> fields, const char* bytes) {
  for (const FieldRange& field : fields) {
    const auto value = static_cast<uint8_t>(bytes[field.offset]);
    if (value > field.greatest) return absl::StrCat("unknown ", field.name, " ", static_cast<int>(value));
  }
  return std::nullopt;
}

}  // namespace weft
