#include "weft/core/topology.h"

#include <hwloc.h>
#include <unistd.h>

#include <algorithm>
#include <initializer_list>

#include "src/core/base/hwloc_topology.h"
#include "weft/core/status.h"

namespace weft {
namespace internal {
namespace {

struct BitmapDestroyer {
  void operator()(hwloc_bitmap_s* bitmap) const { hwloc_bitmap_free(bitmap); }
};
using Bitmap = std::unique_ptr<hwloc_bitmap_s, BitmapDestroyer>;

Bitmap MakeBitmap() {
  Bitmap bitmap(hwloc_bitmap_alloc());
  WEFT_CHECK(bitmap != nullptr, "no memory for a set of CPUs");
  return bitmap;
}

hwloc_topology* MakeTopology() {
  hwloc_topology* topology = nullptr;
  WEFT_CHECK(hwloc_topology_init(&topology) == 0, "hwloc cannot start");
  return topology;
}

// Reads processors, caches and NUMA nodes only, and does not move the calling thread between CPUs meanwhile.
void Load(hwloc_topology* topology) {
  hwloc_topology_set_flags(topology, HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING);
  hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
  hwloc_topology_set_cache_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_ALL);
  hwloc_topology_set_type_filter(topology, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
  // Without groups, a NUMA node would count as near to all processors of its package or of the host.
  hwloc_topology_set_type_filter(topology, HWLOC_OBJ_GROUP, HWLOC_TYPE_FILTER_KEEP_STRUCTURE);
  WEFT_CHECK(hwloc_topology_load(topology) == 0, "hwloc cannot read the topology of this host");
}

Bitmap BoundCpus(hwloc_topology* topology, int flags) {
  Bitmap cpus = MakeBitmap();
  WEFT_CHECK(hwloc_get_cpubind(topology, cpus.get(), flags) == 0, "hwloc cannot read the affinity");
  return cpus;
}

int CountObjects(hwloc_topology* topology, hwloc_obj_type_t type, const Bitmap& cpus) {
  int count = 0;
  for (hwloc_obj_t object = nullptr;
       (object = hwloc_get_next_obj_by_type(topology, type, object)) != nullptr;) {
    if (hwloc_bitmap_intersects(object->cpuset, cpus.get()) != 0) ++count;
  }
  return count;
}

// Memory of other kinds forms NUMA nodes of its own beside the same CPUs, which count once.
int CountNumaNodes(hwloc_topology* topology, const Bitmap& cpus) {
  const Bitmap covered = MakeBitmap();
  int count = 0;
  for (hwloc_obj_t object = nullptr;
       (object = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, object)) != nullptr;) {
    if (hwloc_bitmap_intersects(object->cpuset, cpus.get()) == 0) continue;
    if (hwloc_bitmap_intersects(object->cpuset, covered.get()) != 0) continue;
    hwloc_bitmap_or(covered.get(), covered.get(), object->cpuset);
    ++count;
  }
  return count;
}

}  // namespace

void HwlocTopology::Destroyer::operator()(hwloc_topology* topology) const {
  hwloc_topology_destroy(topology);
}

HwlocTopology::HwlocTopology() : handle_(MakeTopology()) { Load(handle_.get()); }

HwlocTopology::HwlocTopology(const std::string& description) : handle_(MakeTopology()) {
  WEFT_CHECK(hwloc_topology_set_synthetic(handle_.get(), description.c_str()) == 0,
             "hwloc does not understand the description of a topology");
  Load(handle_.get());
}

Topology HwlocTopology::Describe() const {
  hwloc_topology* const topology = handle_.get();
  const Bitmap cpus = BoundCpus(topology, HWLOC_CPUBIND_PROCESS);
  Topology found;
  found.cpus = std::max(1, CountObjects(topology, HWLOC_OBJ_PU, cpus));
  found.cores = std::max(1, CountObjects(topology, HWLOC_OBJ_CORE, cpus));
  found.numa_nodes = std::max(1, CountNumaNodes(topology, cpus));
  for (hwloc_obj_t object = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PU, 0); object != nullptr;
       object = object->parent) {
    if (hwloc_obj_type_is_dcache(object->type) == 0) continue;
    const auto bytes = static_cast<int64_t>(object->attr->cache.size);
    if (object->attr->cache.depth <= 2) found.core_cache_bytes = std::max(found.core_cache_bytes, bytes);
    found.last_level_cache_bytes = std::max(found.last_level_cache_bytes, bytes);
  }
  return found;
}

std::vector<int> HwlocTopology::CpusOfThread() const {
  const Bitmap bound = BoundCpus(handle_.get(), HWLOC_CPUBIND_THREAD);
  std::vector<int> cpus;
  for (int cpu = hwloc_bitmap_first(bound.get()); cpu >= 0; cpu = hwloc_bitmap_next(bound.get(), cpu)) {
    cpus.push_back(cpu);
  }
  return cpus;
}

std::optional<int> HwlocTopology::NumaNodeOf(const std::vector<int>& cpus) const {
  const Bitmap wanted = MakeBitmap();
  for (const int cpu : cpus) hwloc_bitmap_set(wanted.get(), static_cast<unsigned>(cpu));
  // Memory of other kinds forms NUMA nodes of its own beside the same CPUs. The operating system numbers the
  // nodes of ordinary memory first.
  hwloc_obj_t first = nullptr;
  for (hwloc_obj_t object = nullptr;
       (object = hwloc_get_next_obj_by_type(handle_.get(), HWLOC_OBJ_NUMANODE, object)) != nullptr;) {
    if (hwloc_bitmap_intersects(object->cpuset, wanted.get()) == 0) continue;
    if (first == nullptr || object->os_index < first->os_index) first = object;
  }
  if (first == nullptr || hwloc_bitmap_isincluded(wanted.get(), first->cpuset) == 0) return std::nullopt;
  return static_cast<int>(first->os_index);
}

std::optional<int> HwlocTopology::CpuCountOfProcess(int process_id) const {
  const Bitmap cpus = MakeBitmap();
  if (hwloc_get_proc_cpubind(handle_.get(), process_id, cpus.get(), HWLOC_CPUBIND_THREAD) != 0) {
    return std::nullopt;
  }
  return hwloc_bitmap_weight(cpus.get());
}

bool HwlocTopology::PreferNumaNode(void* begin, size_t bytes, int numa_node) const {
  hwloc_obj_t object = hwloc_get_numanode_obj_by_os_index(handle_.get(), static_cast<unsigned>(numa_node));
  // Without HWLOC_MEMBIND_STRICT, other nodes are used once this one is full.
  return object != nullptr && hwloc_set_area_membind(handle_.get(), begin, bytes, object->nodeset,
                                                     HWLOC_MEMBIND_BIND, HWLOC_MEMBIND_BYNODESET) == 0;
}

namespace {

// Never destroyed: threads may still use it when the process ends.
const HwlocTopology& HostHandle() {
  static const auto* const topology = new HwlocTopology();
  return *topology;
}

int64_t FirstKnown(std::initializer_list<int64_t> candidates) {
  return *std::find_if(candidates.begin(), candidates.end(), [](int64_t bytes) { return bytes > 0; });
}

Topology ReadHost() {
  Topology host = HostHandle().Describe();
  host.core_cache_bytes =
      FirstKnown({host.core_cache_bytes, sysconf(_SC_LEVEL2_CACHE_SIZE), int64_t{1} << 20});
  host.last_level_cache_bytes = FirstKnown({host.last_level_cache_bytes, sysconf(_SC_LEVEL3_CACHE_SIZE),
                                            sysconf(_SC_LEVEL2_CACHE_SIZE), int64_t{64} << 20});
  return host;
}

}  // namespace
}  // namespace internal

const Topology& HostTopology() {
  static const Topology topology = internal::ReadHost();
  return topology;
}

std::vector<int> AffinityCpus() { return internal::HostHandle().CpusOfThread(); }

std::optional<int> BoundNumaNode() {
  const internal::HwlocTopology& host = internal::HostHandle();
  return host.NumaNodeOf(host.CpusOfThread());
}

bool PreferNumaNode(void* begin, size_t bytes, int numa_node) {
  return internal::HostHandle().PreferNumaNode(begin, bytes, numa_node);
}

std::optional<int> CpuCountOfProcess(int process_id) {
  return internal::HostHandle().CpuCountOfProcess(process_id);
}

}  // namespace weft
