// The questions to the CPU and the system. Compiled for every CPU.
#include "src/nn/products/panel_units.h"

#include <cpuid.h>
#include <unistd.h>

#include <sys/syscall.h>

namespace weft::panels {
namespace {

// Bits of CPUID leaf 7, subleaf 0, in EDX.
constexpr unsigned kAmxBf16 = 1U << 22;
constexpr unsigned kAmxTile = 1U << 24;

// arch_prctl's request for the state of tiles, which Linux gives to a process on demand.
constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
constexpr long kTileData = 18;               // XFEATURE_XTILEDATA

bool HasAmx() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kNeeded = kAmxBf16 | kAmxTile;
  return (edx & kNeeded) == kNeeded;
}

}  // namespace

const PanelUnit* AmxUnit() {
  // Callers of a unit pack operands by AVX-512, which every CPU with AMX has.
  static const bool available =
      Avx512Bf16Unit() != nullptr && HasAmx() && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return available ? &kAmxUnit : nullptr;
}

const PanelUnit* Avx512Bf16Unit() {
  static const bool available = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bf16");
  return available ? &kAvx512Bf16Unit : nullptr;
}

}  // namespace weft::panels
