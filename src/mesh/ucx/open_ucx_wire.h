// Opens a WireLink between nodes over UCX.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <absl/functional/function_ref.h>
#include <absl/status/statusor.h>

#include "weft/mesh/bootstrap.h"
#include "weft/mesh/wire_link.h"

namespace weft::internal {

struct UcxWireOptions {
  int rank = 0;
  const NodeMap* nodes = nullptr;
  std::string network;  // See StoreBootstrapOptions::network.
};

// Returns the addresses of all ranks, indexed by rank. Collective.
using GatherAddresses = absl::FunctionRef<absl::StatusOr<std::vector<std::string>>(std::string_view own)>;

// On one node, a link without UCX still opens, and refuses messages, which ranks of one node do not need.
// Collective: all ranks.
// Errors: those of `gather`; kFailedPrecondition (a rank of several nodes has no UCX; names it), kInternal
//   (UCX failed; has its message).
absl::StatusOr<std::unique_ptr<WireLink>> OpenUcxWire(const UcxWireOptions& options, GatherAddresses gather);

}  // namespace weft::internal
