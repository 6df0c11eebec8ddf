// Random parameter groups for property tests: scalars, empty and uneven shapes, every shard dim, several
// buckets, and no, some or only frozen parameters.
#pragma once

#include <array>
#include <random>
#include <string>
#include <vector>

#include "weft/sharding/flat_layout.h"

namespace weft::testing {

struct RandomGroup {
  FlatKind kind;
  int shard_size;
  int64_t alignment;
  std::vector<FlatParameter> parameters;

  FlatLayout Layout() const { return *FlatLayout::Make(kind, parameters, shard_size, alignment); }
};

inline RandomGroup MakeRandomGroup(uint32_t seed) {
  std::mt19937 random(seed);
  const auto pick = [&random](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  constexpr std::array kKinds = {FlatKind::kContiguous, FlatKind::kRows, FlatKind::kPerParameter};
  RandomGroup group;
  group.kind = kKinds[static_cast<size_t>(pick(0, 2))];
  group.shard_size = pick(0, 2) == 0 ? pick(1, 64) : pick(1, 5);
  group.alignment = pick(0, 1) == 0 ? 16 : 32;
  const int frozen = pick(0, 4);  // A parameter is frozen with probability frozen / 4.
  for (int i = pick(0, 6); i > 0; --i) {
    FlatParameter parameter;
    for (int dims = pick(0, 3); dims > 0; --dims)
      parameter.shape.push_back(pick(0, 8) == 0 ? 0 : pick(1, 11));
    const int dims = std::max<int>(1, static_cast<int>(parameter.shape.size()));
    parameter.shard_dim = pick(-dims, dims - 1);
    parameter.replicate_bucket = pick(0, 2);
    parameter.trainable = pick(0, 3) >= frozen;
    group.parameters.push_back(parameter);
  }
  return group;
}

constexpr uint32_t kRandomGroups = 400;

}  // namespace weft::testing
