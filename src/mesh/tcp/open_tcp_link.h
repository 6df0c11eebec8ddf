// Opens a TCP link between all ranks of a job. They gather the addresses of their sockets by other means.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <absl/functional/function_ref.h>
#include <absl/status/statusor.h>

#include "weft/mesh/wire_link.h"

namespace weft::internal {

// Raises the soft limit of this process on descriptors to the hard one: a rank has up to two connections for
// each peer, and the usual soft limit is 1024.
//
// `network`: see StoreBootstrapOptions::network. `gather` returns the texts of all ranks, indexed by rank.
// Errors: kFailedPrecondition (a rank has no link, such as one whose `network` does not exist; names the rank
//   and has its error), kInternal (a text is not that of an endpoint; names the rank), and those of
//   `gather`.
// Collective: all ranks.
absl::StatusOr<std::unique_ptr<WireLink>> OpenTcpLink(
    int rank, const std::string& network,
    absl::FunctionRef<absl::StatusOr<std::vector<std::string>>(std::string_view own)> gather);

// The text that a rank gathers if it has no link.
std::string NoTcpLink(std::string_view reason);

}  // namespace weft::internal
