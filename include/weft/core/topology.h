// Processors, caches and NUMA nodes of this host.
//
// Thread safety: all functions may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace weft {

// Counts cover what this process might use when the topology was read: the CPUs of its control group and its
// affinity limit them. Limits of CPU time do not: see weft/mesh/cpu_quota.h.
struct Topology {
  int cpus = 1;        // Hardware threads.
  int cores = 1;       // Physical cores.
  int numa_nodes = 1;  // NUMA nodes of these cores.

  // Caches for data, of the first hardware thread.
  int64_t core_cache_bytes = 0;        // Largest cache of level 1 or 2.
  int64_t last_level_cache_bytes = 0;  // Largest cache of any level; cores may share it.
};

// The topology of this host. The first call reads it, which takes a few milliseconds; later calls return the
// same object. If the host does not describe its caches, their sizes are those of the C library, or else 1
// MiB for a core and 64 MiB for the last level.
const Topology& HostTopology();

// The hardware threads on which the calling thread may run, ascending.
std::vector<int> AffinityCpus();

// The NUMA node with all hardware threads on which the calling thread may run, by its number in the operating
// system. Nothing if they belong to several NUMA nodes: the thread is not bound to one.
std::optional<int> BoundNumaNode();

// Asks for the memory of a NUMA node for those pages of [begin, begin + bytes) that no thread has touched
// yet, whichever thread touches them. Returns false if this host has no such node, or the system forbids it,
// as containers do: pages then lie where the threads run that touch them first.
bool PreferNumaNode(void* begin, size_t bytes, int numa_node);

// Number of hardware threads on which another process may run; nothing if the process does not exist.
std::optional<int> CpuCountOfProcess(int process_id);

}  // namespace weft
