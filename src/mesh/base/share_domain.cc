#include "weft/mesh/share_domain.h"

#include <cstdlib>
#include <fstream>
#include <map>
#include <utility>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/string_view.h>

#include "weft/core/size_text.h"
#include "weft/core/status.h"
#include "weft/core/topology.h"

namespace weft {
namespace {

constexpr const char* kVariable = "WEFT_SHARE_DOMAIN";
constexpr const char* kHowToBind =
    "bind each rank to one NUMA node (mpirun --map-by numa --bind-to numa, or numactl)";

// The NUMA nodes of this host in the notation of the kernel, as "0-3,8"; empty if the system hides them.
std::string NumaNodesOfHost() {
  std::ifstream list("/sys/devices/system/node/online");
  std::string nodes;
  std::getline(list, nodes);
  return nodes;
}

// True if `list`, as "0-3,8", has the number, or is not such a list.
bool MayHave(absl::string_view list, int number) {
  for (const absl::string_view part : absl::StrSplit(list, ',')) {
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(part, absl::MaxSplits('-', 1));
    int first = 0;
    int last = 0;
    if (!absl::SimpleAtoi(ends.first, &first)) return true;
    if (!absl::SimpleAtoi(ends.second, &last)) last = first;
    if (first <= number && number <= last) return true;
  }
  return false;
}

// The lowest rank that may run on several NUMA nodes.
std::optional<int> FirstUnbound(const NodeMap& nodes) {
  for (int rank = 0; rank < nodes.size(); ++rank) {
    if (nodes.numa_of_rank.empty() || nodes.numa_of_rank[static_cast<size_t>(rank)] == NodeMap::kNotBound)
      return rank;
  }
  return std::nullopt;
}

std::string MayRunOnSeveral(int rank) {
  return absl::StrCat("rank ", rank, " may run on several NUMA nodes");
}

// REQUIRES: every rank is bound.
NodeMap NumaNodes(const NodeMap& nodes) {
  NodeMap domains;
  std::map<std::pair<int, int>, int> number_of;  // By node and its NUMA node.
  for (size_t rank = 0; rank < nodes.node_of_rank.size(); ++rank) {
    const std::pair<int, int> place(nodes.node_of_rank[rank], nodes.numa_of_rank[rank]);
    const int next = static_cast<int>(number_of.size());
    domains.node_of_rank.push_back(number_of.try_emplace(place, next).first->second);
  }
  return domains;
}

ShareDomains ByNode(const NodeMap& nodes, std::string reason) {
  return {ShareDomain::kNode, NodeMap{nodes.node_of_rank}, std::move(reason)};
}

}  // namespace

std::string_view Name(ShareDomain domain) {
  switch (domain) {
    case ShareDomain::kAuto:
      return "auto";
    case ShareDomain::kNode:
      return "node";
    case ShareDomain::kNuma:
      return "numa";
    case ShareDomain::kNone:
      return "none";
  }
  return "unknown";
}

std::string ShareDomains::ToString() const { return absl::StrCat(ToAbsl(Name(kind)), ": ", reason); }

absl::StatusOr<ShareDomains> ChooseShareDomains(const NodeMap& nodes, ShareDomain wanted) {
  if (wanted == ShareDomain::kNode) return ByNode(nodes, "chosen: the ranks of a node share images");
  if (wanted == ShareDomain::kNone) {
    return ShareDomains{ShareDomain::kNone, NodeMap::RanksPerNode(nodes.size(), 1),
                        "chosen: each rank has images of its own"};
  }
  const std::optional<int> unbound = FirstUnbound(nodes);
  if (unbound && wanted == ShareDomain::kNuma) {
    return absl::InvalidArgumentError(absl::StrCat("share domain numa: ", MayRunOnSeveral(*unbound), ": ",
                                                   kHowToBind, ", or use share domain node"));
  }
  if (unbound) return ByNode(nodes, MayRunOnSeveral(*unbound));
  NodeMap domains = NumaNodes(nodes);
  const int count = domains.node_count();
  if (wanted == ShareDomain::kAuto && count == nodes.node_count()) {
    return ByNode(nodes, "the ranks of each node are bound to one NUMA node");
  }
  return ShareDomains{ShareDomain::kNuma, std::move(domains),
                      absl::StrCat("ranks are bound to ", Count(count, "NUMA node"), " of ",
                                   Count(nodes.node_count(), "node"))};
}

absl::StatusOr<ShareDomain> DefaultShareDomain() {
  const char* text = std::getenv(kVariable);
  if (text == nullptr) return ShareDomain::kAuto;
  for (const ShareDomain domain :
       {ShareDomain::kAuto, ShareDomain::kNode, ShareDomain::kNuma, ShareDomain::kNone}) {
    if (Name(domain) == text) return domain;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(kVariable, " is '", text, "': it must be auto, node, numa or none, or unset for auto"));
}

absl::StatusOr<std::optional<int>> NumaNodeFromEnvironment() {
  const char* text = std::getenv("WEFT_NUMA_NODE");
  if (text == nullptr) return std::nullopt;
  int node = 0;
  if (absl::SimpleAtoi(text, &node) && node >= 0) {
    const std::string nodes = NumaNodesOfHost();
    if (MayHave(nodes, node)) return node;
    return absl::InvalidArgumentError(absl::StrCat("WEFT_NUMA_NODE is '", text,
                                                   "', but the NUMA nodes of this host are ", nodes,
                                                   ": set it to one of them, or unset it"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "WEFT_NUMA_NODE is '", text, "': set it to the number of a NUMA node, from 0, or unset it"));
}

int NumaNodeOrBinding(std::optional<int> given) {
  return given.has_value() ? *given : BoundNumaNode().value_or(NodeMap::kNotBound);
}

}  // namespace weft
