#pragma once

#include <vector>

#include "weft/context_parallel/context_scheme.h"

namespace weft::testing {

// All schemes that are no hybrid of Ulysses and another.
inline std::vector<ContextScheme> SingleSchemes() {
  std::vector<ContextScheme> schemes = {
      ContextScheme::Ulysses(),
      ContextScheme::Gather(),
      ContextScheme::Gather(LoadBalance::kHeadTail),
      ContextScheme::Gather(LoadBalance::kQueryExchange),
  };
  for (const RingRotation rotation : {RingRotation::kAllGather, RingRotation::kShift}) {
    for (const LoadBalance balance : {LoadBalance::kNone, LoadBalance::kHeadTail}) {
      schemes.push_back(ContextScheme::Ring(rotation, balance));
    }
  }
  return schemes;
}

}  // namespace weft::testing
