// Ranks that are threads, on every kind of node map.
#pragma once

#include <string>
#include <vector>

#include <absl/functional/function_ref.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <gtest/gtest.h>

#include "tests/support/schedule_count.h"
#include "tests/support/status_matchers.h"
#include "weft/mesh/thread_bootstrap.h"

namespace weft::testing {

// All ranks on one node, on two nodes (the first one is larger if the number of ranks is odd), and each rank
// on its own node. Contains no map twice. If tests are limited, more than four ranks are on two nodes only.
inline std::vector<NodeMap> NodeMapsOf(int ranks) {
  if (ranks > 4 && ScheduleLimit()) return {NodeMap::RanksPerNode(ranks, (ranks + 1) / 2)};
  std::vector<NodeMap> maps = {NodeMap::OneNode(ranks)};
  if (ranks > 2) maps.push_back(NodeMap::RanksPerNode(ranks, (ranks + 1) / 2));
  if (ranks > 1) maps.push_back(NodeMap::RanksPerNode(ranks, 1));
  return maps;
}

// Several NUMA nodes on a node: pairs of ranks and alternating ranks on one node, and alternating ranks on
// two nodes. The last rank of an odd number is alone.
inline std::vector<NodeMap> NumaMapsOf(int ranks) {
  std::vector<NodeMap> maps = {NodeMap::OneNode(ranks), NodeMap::OneNode(ranks),
                               NodeMap::RanksPerNode(ranks, (ranks + 1) / 2),
                               NodeMap::RanksPerNode(ranks, (ranks + 1) / 2)};
  for (int rank = 0; rank < ranks; ++rank) {
    maps[0].numa_of_rank.push_back(rank / 2);
    maps[1].numa_of_rank.push_back(rank % 2);
    maps[2].numa_of_rank.push_back(rank % 2);
    maps[3].numa_of_rank.push_back(rank / 2 % 2);
  }
  return maps;
}

inline std::string Describe(const NodeMap& nodes) {
  return absl::StrCat(nodes.size(), " ranks on ", nodes.node_count(), " nodes",
                      nodes.numa_of_rank.empty()
                          ? ""
                          : absl::StrCat(", on NUMA nodes ", absl::StrJoin(nodes.numa_of_rank, " ")));
}

// Runs `body` on each rank. The test fails if a body returns an error or an expectation inside of it fails.
inline void RunRanks(const NodeMap& nodes, absl::FunctionRef<absl::Status(Bootstrap&)> body) {
  SCOPED_TRACE(Describe(nodes));
  EXPECT_OK(RunThreadRanks(nodes, [&](Bootstrap& bootstrap) {
    SCOPED_TRACE(
        absl::StrCat("rank ", bootstrap.rank(), " of ", Describe(nodes)));  // Each thread has its own traces.
    return body(bootstrap);
  }));
}

inline void RunRanksOnEveryNodeMap(int ranks, absl::FunctionRef<absl::Status(Bootstrap&)> body) {
  for (const NodeMap& nodes : NodeMapsOf(ranks)) RunRanks(nodes, body);
}

}  // namespace weft::testing
