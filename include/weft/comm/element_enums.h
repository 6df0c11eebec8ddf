// Enumerations of what collectives are told about elements: reductions, and kinds of the caller's elements.
// It includes no other header of weft, for code that does not link weft.
#pragma once

#include <cstdint>

namespace weft {

// kAverage scales the sum by 1 / (group size) before it is rounded to the dtype; not for integers. kMax
// and kMin of floating-point numbers are NaN if an operand is. Sums and products of integers wrap.
// kBitAnd, kBitOr and kBitXor are for integers.
enum class ReduceOp : uint8_t { kSum, kAverage, kMax, kMin, kProduct, kBitAnd, kBitOr, kBitXor };

// The form of elements whose own dtype is none of the engine's: complex numbers travel as pairs of real ones,
// bool and unsigned integers as integers, all others as bytes. Narrow floats have a kind for each format.
enum class ElementKind : uint8_t {
  kPlain,
  kComplex,
  kBool,
  kUnsigned,
  kFloat8E4M3Fn,
  kFloat8E4M3Fnuz,
  kFloat8E5M2,
  kFloat8E5M2Fnuz,
  kFloat8E8M0Fnu,
  kFloat4E2M1Fn,
  kBytes
};

}  // namespace weft
