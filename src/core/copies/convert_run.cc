#include "src/core/copies/convert_run.h"

#include <cstring>
#include <type_traits>

#include "weft/core/status.h"
#include "weft/core/vector_clones.h"

namespace weft::internal {
namespace {

// Writes step(source element) to each target element. Unit strides have a loop of their own, which
// vectorizes.
template <typename Source, typename Target, typename Step>
WEFT_VECTOR_CLONES void ForEachPair(const std::byte* source, int64_t source_stride, std::byte* target,
                                    int64_t target_stride, int64_t count, Step step) {
  const auto* from = reinterpret_cast<const Source*>(source);
  auto* to = reinterpret_cast<Target*>(target);
  if (source_stride == 1 && target_stride == 1) {
    for (int64_t i = 0; i < count; ++i) to[i] = step(from[i]);
    return;
  }
  for (int64_t i = 0; i < count; ++i) to[i * target_stride] = step(from[i * source_stride]);
}

// The type in which elements are converted.
template <typename Source, typename Target>
using Arithmetic =
    std::conditional_t<std::is_same_v<Source, double> || std::is_same_v<Target, double>, double, float>;

template <typename T, typename Value>
T Narrowed(Value value) {
  if constexpr (std::is_same_v<T, BF16>) return ToBF16(static_cast<float>(value));
  if constexpr (std::is_same_v<T, F16>) return ToF16(static_cast<float>(value));
  if constexpr (std::is_arithmetic_v<T>) return static_cast<T>(value);
}

float Widened(float value) { return value; }
float Widened(BF16 value) { return ToFloat(value); }
float Widened(F16 value) { return ToFloat(value); }
double Widened(double value) { return value; }

template <typename Source, typename Target>
void ConvertFloats(const std::byte* source, int64_t source_stride, std::byte* target, int64_t target_stride,
                   int64_t count, double scale) {
  const auto factor = static_cast<Arithmetic<Source, Target>>(scale);
  ForEachPair<Source, Target>(source, source_stride, target, target_stride, count,
                              [factor](Source value) { return Narrowed<Target>(Widened(value) * factor); });
}

// The same between f16 and f32, by `convert` on a CPU with instructions for it.
template <typename Source, typename Target, void (*convert)(const Source*, Target*, int64_t, float)>
void ConvertByInstructions(const std::byte* source, int64_t source_stride, std::byte* target,
                           int64_t target_stride, int64_t count, double scale) {
  if (source_stride != 1 || target_stride != 1)
    return ConvertFloats<Source, Target>(source, source_stride, target, target_stride, count, scale);
  convert(reinterpret_cast<const Source*>(source), reinterpret_cast<Target*>(target), count,
          static_cast<float>(scale));
}

template <typename Source, typename Target>
void ConvertIntegers(const std::byte* source, int64_t source_stride, std::byte* target, int64_t target_stride,
                     int64_t count, double /*scale*/) {
  ForEachPair<Source, Target>(source, source_stride, target, target_stride, count,
                              [](Source value) { return static_cast<Target>(value); });
}

// Copies bits unchanged, including NaN payloads. `Word` is an unsigned integer of the element's size. It is
// loaded and stored by copies: to access a float as an integer is undefined behavior.
template <typename Word>
WEFT_VECTOR_CLONES void MoveStrided(const std::byte* source, int64_t source_stride, std::byte* target,
                                    int64_t target_stride, int64_t count) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(Word));
  for (int64_t i = 0; i < count; ++i) {
    Word word;
    std::memcpy(&word, source + i * source_stride * kBytes, sizeof(word));
    std::memcpy(target + i * target_stride * kBytes, &word, sizeof(word));
  }
}

template <typename Word>
void Move(const std::byte* source, int64_t source_stride, std::byte* target, int64_t target_stride,
          int64_t count, double /*scale*/) {
  if (source == target && source_stride == target_stride) return;
  if (source_stride == 1 && target_stride == 1) {
    std::memcpy(target, source, static_cast<size_t>(count) * sizeof(Word));
    return;
  }
  MoveStrided<Word>(source, source_stride, target, target_stride, count);
}

RunKernel SelectMove(DType dtype) {
  switch (SizeOf(dtype)) {
    case 1:
      return Move<uint8_t>;
    case 2:
      return Move<uint16_t>;
    case 4:
      return Move<uint32_t>;
    default:
      return Move<uint64_t>;
  }
}

template <typename Source>
RunKernel SelectFloatTarget(DType target) {
  switch (target) {
    case DType::kF32:
      return ConvertFloats<Source, float>;
    case DType::kBF16:
      return ConvertFloats<Source, BF16>;
    case DType::kF16:
      return ConvertFloats<Source, F16>;
    case DType::kF64:
      return ConvertFloats<Source, double>;
    default:
      return nullptr;
  }
}

template <typename Source>
RunKernel SelectIntegerTarget(DType target) {
  switch (target) {
    case DType::kI64:
      return ConvertIntegers<Source, int64_t>;
    case DType::kI32:
      return ConvertIntegers<Source, int32_t>;
    case DType::kI16:
      return ConvertIntegers<Source, int16_t>;
    case DType::kI8:
      return ConvertIntegers<Source, int8_t>;
    case DType::kU8:
      return ConvertIntegers<Source, uint8_t>;
    default:
      return nullptr;
  }
}

RunKernel SelectConversion(DType source, DType target) {
  if (f16c::IsAvailable() && source == DType::kF16 && target == DType::kF32)
    return ConvertByInstructions<F16, float, f16c::Widen>;
  if (f16c::IsAvailable() && source == DType::kF32 && target == DType::kF16)
    return ConvertByInstructions<float, F16, f16c::Narrow>;
  switch (source) {
    case DType::kF32:
      return SelectFloatTarget<float>(target);
    case DType::kBF16:
      return SelectFloatTarget<BF16>(target);
    case DType::kF16:
      return SelectFloatTarget<F16>(target);
    case DType::kF64:
      return SelectFloatTarget<double>(target);
    case DType::kI32:
      return SelectIntegerTarget<int32_t>(target);
    case DType::kI64:
      return SelectIntegerTarget<int64_t>(target);
    case DType::kI16:
      return SelectIntegerTarget<int16_t>(target);
    case DType::kI8:
      return SelectIntegerTarget<int8_t>(target);
    case DType::kU8:
      return SelectIntegerTarget<uint8_t>(target);
  }
  return nullptr;
}

}  // namespace

RunKernel SelectRunKernel(DType source, DType target, double scale) {
  WEFT_CHECK(scale == 1.0 || IsFloating(source), "a copy of integers has a scale other than 1");
  const RunKernel kernel =
      source == target && scale == 1.0 ? SelectMove(source) : SelectConversion(source, target);
  WEFT_CHECK(kernel != nullptr, "no cast between these dtypes");
  return kernel;
}

}  // namespace weft::internal
