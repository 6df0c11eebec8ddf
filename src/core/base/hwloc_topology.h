// A topology as hwloc reads it; no other file of weft uses hwloc.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/core/topology.h"

struct hwloc_topology;

namespace weft::internal {

// Thread safety: const functions may be called from any thread.
class HwlocTopology {
 public:
  // Reads this host.
  HwlocTopology();
  // Makes up a host from a synthetic description of hwloc, as in "l3:1(size=1048576) core:2 pu:1".
  explicit HwlocTopology(const std::string& description);

  // Cache sizes are 0 where they are unknown.
  Topology Describe() const;
  std::vector<int> CpusOfThread() const;
  // The NUMA node with all of these hardware threads; nothing if they belong to several, or there are none.
  std::optional<int> NumaNodeOf(const std::vector<int>& cpus) const;
  std::optional<int> CpuCountOfProcess(int process_id) const;
  bool PreferNumaNode(void* begin, size_t bytes, int numa_node) const;

 private:
  struct Destroyer {
    void operator()(hwloc_topology* topology) const;
  };
  std::unique_ptr<hwloc_topology, Destroyer> handle_;
};

}  // namespace weft::internal
