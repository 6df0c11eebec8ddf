// This file alone is compiled for F16C. It calls no inline function of other headers: the linker might keep
// its copy of one for all callers.
#include <cpuid.h>
#include <immintrin.h>

#include <cstring>

#include "src/core/copies/convert_run.h"

namespace weft::internal::f16c {
namespace {

constexpr int64_t kLanes = 8;

void WidenLanes(const F16* source, float* target, __m256 scale) {
  const __m256 wide = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source)));
  _mm256_storeu_ps(target, _mm256_mul_ps(wide, scale));
}

void NarrowLanes(const float* source, F16* target, __m256 scale) {
  const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(source), scale);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(target), _mm256_cvtps_ph(scaled, _MM_FROUND_TO_NEAREST_INT));
}

// Calls convert(source, target) for all whole groups of lanes, and for a copy of the rest.
template <typename Source, typename Target, typename Convert>
void ForAllLanes(const Source* source, Target* target, int64_t count, Convert convert) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) convert(source + i, target + i);
  if (i == count) return;
  Source rest[kLanes] = {};
  Target converted[kLanes];
  std::memcpy(rest, source + i, static_cast<size_t>(count - i) * sizeof(Source));
  convert(rest, converted);
  std::memcpy(target + i, converted, static_cast<size_t>(count - i) * sizeof(Target));
}

// The system must save the registers of AVX, too.
bool HasInstructions() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __builtin_cpu_supports("avx") != 0 && __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 &&
         (ecx & bit_F16C) != 0;
}

}  // namespace

bool IsAvailable() {
  static const bool available = HasInstructions();
  return available;
}

void Widen(const F16* source, float* target, int64_t count, float scale) {
  const __m256 factors = _mm256_set1_ps(scale);
  ForAllLanes(source, target, count,
              [factors](const F16* from, float* to) { WidenLanes(from, to, factors); });
}

void Narrow(const float* source, F16* target, int64_t count, float scale) {
  const __m256 factors = _mm256_set1_ps(scale);
  ForAllLanes(source, target, count,
              [factors](const float* from, F16* to) { NarrowLanes(from, to, factors); });
}

}  // namespace weft::internal::f16c
