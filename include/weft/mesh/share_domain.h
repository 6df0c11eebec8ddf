// Share domains: the ranks of a node that share images of gathered parameters.
//
// A domain is a node, a NUMA node of it, or a single rank. Ranks of a domain read one image in memory near
// them. Other domains of the node have images of their own, so that no rank reads weights over the link
// between sockets each time it computes.
//
// Pure, but for the functions that read the environment.
// Thread safety: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <absl/status/statusor.h>

#include "weft/mesh/bootstrap.h"

namespace weft {

enum class ShareDomain : uint8_t {
  // kNuma if every rank is bound to one NUMA node, and some node has ranks on several; else kNode.
  kAuto,
  kNode,  // All ranks of a node.
  kNuma,  // The ranks that are bound to one NUMA node.
  kNone,  // Each rank alone: nothing is shared.
};

// "auto", "node", "numa", "none".
std::string_view Name(ShareDomain domain);

struct ShareDomains {
  ShareDomain kind = ShareDomain::kNode;  // Not kAuto.
  // Assignment of ranks to domains, which takes the place of nodes. No domain has ranks of two nodes.
  NodeMap map;
  std::string reason;  // For the user.

  // "numa: ranks are bound to 4 NUMA nodes of 2 nodes".
  std::string ToString() const;
};

// The domains of a job; the same on all ranks.
// Errors: kInvalidArgument (kNuma, but a rank is not bound to one NUMA node; names it, and the remedy).
absl::StatusOr<ShareDomains> ChooseShareDomains(const NodeMap& nodes, ShareDomain wanted);

// The choice where a program makes none: WEFT_SHARE_DOMAIN, or kAuto if it is unset.
// Errors: kInvalidArgument (WEFT_SHARE_DOMAIN is none of the names).
absl::StatusOr<ShareDomain> DefaultShareDomain();

// WEFT_NUMA_NODE: the NUMA node to which this rank counts as bound, whatever its affinity. Nothing if unset.
// Errors: kInvalidArgument (it is not the number of a NUMA node, or this host has no such node).
absl::StatusOr<std::optional<int>> NumaNodeFromEnvironment();
// `given`, or else the NUMA node of the calling thread's affinity; NodeMap::kNotBound if there are several.
int NumaNodeOrBinding(std::optional<int> given);

}  // namespace weft
