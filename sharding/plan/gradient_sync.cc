#include "weft/sharding/gradient_sync.h"

namespace weft {

std::string_view Name(GradientSync sync) {
  switch (sync) {
    case GradientSync::kLast:
      return "last";
    case GradientSync::kReduceScatter:
      return "reduce-scatter";
    case GradientSync::kEach:
      return "each";
  }
  return "?";
}

}  // namespace weft
