// Access to the parts of ShardedGroups, for the library and its tests.
#pragma once

#include <memory>

#include <absl/types/span.h>

#include "weft/sharding/sharded_groups.h"

namespace weft {

// Lifetime: the groups must outlive it.
struct ShardedGroupsParts {
  explicit ShardedGroupsParts(const ShardedGroups& sharded)
      : context(*sharded.context_), scalars(*sharded.scalars_), groups(sharded.groups_) {}

  CommContext& context;
  ModelScalars& scalars;
  absl::Span<const std::unique_ptr<ParamGroup>> groups;  // By number.
};

}  // namespace weft
