#include "weft/memory/node_heap.h"

#include <algorithm>
#include <atomic>
#include <list>
#include <map>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include <absl/base/thread_annotations.h>
#include <absl/strings/numbers.h>

#include "src/memory/free_list.h"
#include "src/memory/page_commit.h"
#include "src/memory/page_view.h"
#include "weft/core/mutex.h"
#include "weft/core/status.h"
#include "weft/core/topology.h"

namespace weft {
namespace {

// Default segment sizes are multiples of this many bytes.
constexpr size_t kSegmentGranularity = size_t{2} << 20;

// Nine tenths of the node's free memory, divided by its ranks. The rest is left for allocations outside the
// heap. A reservation takes no memory yet, but addresses: half of these are left.
absl::StatusOr<size_t> DefaultSegmentBytes(const Bootstrap& bootstrap) {
  WEFT_ASSIGN_OR_RETURN(const FreeMemory free_memory, bootstrap.FreeNodeMemory());
  const size_t free_bytes = std::min(free_memory.reservable() / 10 * 9, free_memory.address_space / 2);
  const size_t share = free_bytes / bootstrap.node_map().RanksOf(bootstrap.node()).size();
  if (share < kSegmentGranularity) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a node heap needs at least ", kSegmentGranularity,
                     " bytes for each rank, but the node of rank ", bootstrap.rank(), " has only ", share,
                     " free for each: use fewer ranks on that node, or free memory. On that node ",
                     free_memory.ScarcestResource()));
  }
  return share / kSegmentGranularity * kSegmentGranularity;
}

// The minimum of `own` over all ranks. Collective.
absl::StatusOr<size_t> MinOverRanks(Bootstrap& bootstrap, const absl::StatusOr<size_t>& own,
                                    absl::Duration timeout) {
  const absl::StatusOr<std::string> text =
      own.ok() ? absl::StatusOr<std::string>(absl::StrCat(*own)) : own.status();
  WEFT_ASSIGN_OR_RETURN(const auto blobs, ExchangeBlobs(bootstrap, "heap sizes", text, timeout));
  size_t smallest = *own;
  for (const std::string& blob : blobs) {
    uint64_t theirs = 0;
    WEFT_CHECK(absl::SimpleAtoi(blob, &theirs), "a rank sent no heap size");
    smallest = std::min<size_t>(smallest, theirs);
  }
  return smallest;
}

// `options` may be an error of this rank's options.
absl::StatusOr<size_t> AgreeOnSegmentBytes(Bootstrap& bootstrap, const absl::Status& options, size_t wanted,
                                           absl::Duration timeout) {
  absl::StatusOr<size_t> own = wanted;
  if (!options.ok()) {
    own = options;
  } else if (wanted == 0) {
    own = DefaultSegmentBytes(bootstrap);
  }
  return MinOverRanks(bootstrap, own, timeout);
}

// For the end of messages.
std::string NameScarcestResource(const Bootstrap& bootstrap) {
  const absl::StatusOr<FreeMemory> free_memory = bootstrap.FreeNodeMemory();
  return free_memory.ok()
             ? free_memory->ScarcestResource()
             : absl::StrCat("which resource limits it is unknown: ", free_memory.status().message());
}

}  // namespace

class NodeHeap::Impl {
 public:
  Impl(const Bootstrap& bootstrap, NodeMemory memory, bool poison_released)
      : bootstrap_(bootstrap),
        memory_(std::move(memory)),
        by_base_(SortedByBase(memory_.segments)),
        poisons_released_(poison_released),
        base_(Base(bootstrap.rank())),
        free_list_(memory_.segment_bytes),
        committer_(base_, memory_.segment_bytes),
        limit_(NameScarcestResource(bootstrap)) {
    // Pages are committed by this rank, so that they lie on its NUMA node even if the system forbids
    // PreferNumaNode.
    const std::vector<int>& numa_of_rank = bootstrap.node_map().numa_of_rank;
    const int numa =
        numa_of_rank.empty() ? NodeMap::kNotBound : numa_of_rank[static_cast<size_t>(bootstrap.rank())];
    if (numa != NodeMap::kNotBound) PreferNumaNode(base_, memory_.segment_bytes, numa);
  }

  absl::StatusOr<std::byte*> Allocate(size_t bytes) {
    absl::StatusOr<std::byte*> block = TryAllocate(bytes);
    if (block.ok() || !RunReclaimers()) return block;
    return TryAllocate(bytes);
  }

  int AddReclaimer(Reclaimer reclaimer) {
    const MutexLock lock(reclaimers_mutex_);
    reclaimers_.emplace(next_reclaimer_, std::move(reclaimer));
    return next_reclaimer_++;
  }
  void RemoveReclaimer(int number) {
    const MutexLock lock(reclaimers_mutex_);
    reclaimers_.erase(number);
  }

  void Free(std::byte* block) {
    if (block == nullptr) return;
    WEFT_CHECK(IsInOwnSegment(block), "the freed block is not in this rank's segment");
    const MutexLock lock(mutex_);
    free_list_.Free(static_cast<uint64_t>(block - base_));
  }

  void DeferFree(std::byte* block, const std::atomic<int32_t>& holders) {
    WEFT_CHECK(IsInOwnSegment(block), "the block for a deferred free is not in this rank's segment");
    const MutexLock lock(mutex_);
    deferred_.push_back({block, holders});
  }

  std::optional<NodeAddress> AddressOf(const void* pointer, size_t bytes) const {
    const auto next = std::upper_bound(
        by_base_.begin(), by_base_.end(), AsInteger(pointer),
        [](uintptr_t place, const NodeMemory::Segment& segment) { return place < AsInteger(segment.base); });
    if (next != by_base_.begin()) {
      const NodeMemory::Segment& segment = *std::prev(next);
      const uint64_t offset = AsInteger(pointer) - AsInteger(segment.base);
      if (offset < memory_.segment_bytes) {
        if (bytes > memory_.segment_bytes - offset) return std::nullopt;
        return NodeAddress{segment.rank, offset};
      }
    }
    if (!has_views_.load(std::memory_order_acquire)) return std::nullopt;
    const std::shared_lock lock(views_mutex_);
    for (const auto& [number, view] : views_) {
      const auto offset = view.OffsetOf(pointer, bytes);
      if (offset) return NodeAddress{bootstrap_.size() + number, *offset};
    }
    return std::nullopt;
  }

  absl::StatusOr<std::byte*> MapEndToEnd(int number, absl::Span<const Range> ranges) {
    std::vector<internal::PageRange> pages;
    for (const Range& range : ranges) pages.push_back({Resolve(range.address), range.bytes});
    WEFT_ASSIGN_OR_RETURN(auto view, internal::PageView::Map(pages));
    const std::unique_lock lock(views_mutex_);
    has_views_.store(true, std::memory_order_release);
    return views_.insert_or_assign(number, std::move(view)).first->second.base();
  }
  int next_view_number() const {
    const MutexLock lock(mutex_);
    return next_view_;
  }
  void TakeViewNumbers(int first, int count) {
    const MutexLock lock(mutex_);
    next_view_ = first + count;
  }

  std::byte* Resolve(NodeAddress address) const {
    if (address.rank >= bootstrap_.size()) {
      const std::shared_lock lock(views_mutex_);
      const auto view = views_.find(address.rank - bootstrap_.size());
      WEFT_CHECK(view != views_.end(),
                 "node address of a rank on another node, or of a view that this rank has not mapped");
      return view->second.base() + address.offset;
    }
    WEFT_CHECK(address.offset <= memory_.segment_bytes, "address past the end of a node segment");
    return Base(address.rank) + address.offset;
  }

  bool Holds(NodeAddress address, size_t bytes) const {
    const auto fits = [&](size_t size) { return address.offset <= size && bytes <= size - address.offset; };
    if (address.rank < bootstrap_.size()) {
      return fits(memory_.segment_bytes) &&
             std::any_of(memory_.segments.begin(), memory_.segments.end(),
                         [&](const NodeMemory::Segment& segment) { return segment.rank == address.rank; });
    }
    const std::shared_lock lock(views_mutex_);
    const auto view = views_.find(address.rank - bootstrap_.size());
    return view != views_.end() && fits(view->second.bytes());
  }

  size_t allocated_bytes() {
    const MutexLock lock(mutex_);
    FreeUnheld();
    return free_list_.allocated_bytes();
  }
  size_t peak_bytes() const {
    const MutexLock lock(mutex_);
    return peak_bytes_;
  }
  size_t total_allocated_bytes() const {
    const MutexLock lock(mutex_);
    return total_allocated_bytes_;
  }
  const NodeMemory& memory() const { return memory_; }
  bool poisons_released() const { return poisons_released_; }

 private:
  absl::StatusOr<std::byte*> TryAllocate(size_t bytes) {
    const MutexLock lock(mutex_);
    FreeUnheld();
    const std::optional<uint64_t> offset = free_list_.Allocate(bytes);
    if (!offset) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "node heap of rank ", bootstrap_.rank(), ": cannot allocate ", bytes,
          " bytes: ", free_list_.free_bytes(), " of ", memory_.segment_bytes,
          " are free, the largest free range has ", free_list_.largest_hole(),
          ". The size of the heap is set at the start, by NodeHeap::Options::segment_bytes or, under "
          "PyTorch, WEFT_SEGMENT_BYTES; ",
          limit_));
    }
    const absl::Status committed = committer_.Commit(*offset, internal::FreeList::BlockBytes(bytes),
                                                     [this] { return bootstrap_.FreeNodeMemory(); });
    if (!committed.ok()) {
      free_list_.Free(*offset);
      return Annotate(committed, absl::StrCat("node heap of rank ", bootstrap_.rank()));
    }
    peak_bytes_ = std::max(peak_bytes_, free_list_.allocated_bytes());
    total_allocated_bytes_ += internal::FreeList::BlockBytes(bytes);
    return base_ + *offset;
  }

  // Returns false if there are no reclaimers.
  bool RunReclaimers() {
    const MutexLock lock(reclaimers_mutex_);
    for (const auto& [number, reclaim] : reclaimers_) reclaim();
    return !reclaimers_.empty();
  }

  struct DeferredFree {
    std::byte* block;
    const std::atomic<int32_t>& holders;
  };

  // Addresses are compared as integers, because C++ does not order pointers into different objects.
  static uintptr_t AsInteger(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }
  bool IsInOwnSegment(const void* pointer) const {
    return AsInteger(pointer) - AsInteger(base_) < memory_.segment_bytes;
  }
  static std::vector<NodeMemory::Segment> SortedByBase(std::vector<NodeMemory::Segment> segments) {
    std::sort(segments.begin(), segments.end(),
              [](const auto& a, const auto& b) { return AsInteger(a.base) < AsInteger(b.base); });
    return segments;
  }

  void FreeUnheld() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::erase_if(deferred_, [this](const DeferredFree& deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      if (deferred.holders.load(std::memory_order_acquire) > 0) return false;
      free_list_.Free(static_cast<uint64_t>(deferred.block - base_));
      return true;
    });
  }

  std::byte* Base(int rank) const {
    const auto found = std::lower_bound(
        memory_.segments.begin(), memory_.segments.end(), rank,
        [](const NodeMemory::Segment& segment, int wanted) { return segment.rank < wanted; });
    WEFT_CHECK(found != memory_.segments.end() && found->rank == rank,
               "node address of a rank on another node");
    return found->base;
  }

  const Bootstrap& bootstrap_;
  const NodeMemory memory_;  // Segments in the order of ranks.
  const std::vector<NodeMemory::Segment> by_base_;
  const bool poisons_released_;
  std::byte* const base_;
  mutable Mutex mutex_;
  internal::FreeList free_list_ ABSL_GUARDED_BY(mutex_);
  internal::PageCommitter committer_ ABSL_GUARDED_BY(mutex_);
  const std::string limit_;  // The resource that was scarcest at the start.
  // Blocks that still had holders at the last check.
  std::list<DeferredFree> deferred_ ABSL_GUARDED_BY(mutex_);
  size_t peak_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t total_allocated_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int next_view_ ABSL_GUARDED_BY(mutex_) = 0;
  mutable std::shared_mutex views_mutex_;
  std::map<int, internal::PageView> views_;
  std::atomic<bool> has_views_ = false;  // For AddressOf, which most engines call without any.
  Mutex reclaimers_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  std::map<int, Reclaimer> reclaimers_ ABSL_GUARDED_BY(reclaimers_mutex_);
  int next_reclaimer_ ABSL_GUARDED_BY(reclaimers_mutex_) = 0;
};

absl::StatusOr<std::unique_ptr<NodeHeap>> NodeHeap::Create(Bootstrap& bootstrap, const Options& options) {
  const absl::StatusOr<absl::Duration> found = TimeoutOrDefault(options.timeout);
  const absl::Duration timeout = found.value_or(kFallbackTimeout);
  WEFT_ASSIGN_OR_RETURN(const size_t segment_bytes,
                        AgreeOnSegmentBytes(bootstrap, found.status(), options.segment_bytes, timeout));
  absl::StatusOr<NodeMemory> memory = bootstrap.ReserveNodeMemory(segment_bytes);
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, memory.status(), timeout));
  return std::unique_ptr<NodeHeap>(
      new NodeHeap(std::make_unique<Impl>(bootstrap, *std::move(memory), options.poison_released)));
}

NodeHeap::NodeHeap(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
NodeHeap::~NodeHeap() = default;

absl::StatusOr<std::byte*> NodeHeap::Allocate(size_t bytes) { return impl_->Allocate(bytes); }
void NodeHeap::Free(std::byte* block) { impl_->Free(block); }
void NodeHeap::DeferFree(std::byte* block, const std::atomic<int32_t>& holders) {
  impl_->DeferFree(block, holders);
}
int NodeHeap::AddReclaimer(Reclaimer reclaimer) { return impl_->AddReclaimer(std::move(reclaimer)); }
void NodeHeap::RemoveReclaimer(int number) { impl_->RemoveReclaimer(number); }
std::optional<NodeAddress> NodeHeap::AddressOf(const void* pointer, size_t bytes) const {
  return impl_->AddressOf(pointer, bytes);
}
absl::StatusOr<std::byte*> NodeHeap::MapEndToEnd(int number, absl::Span<const Range> ranges) {
  return impl_->MapEndToEnd(number, ranges);
}
int NodeHeap::next_view_number() const { return impl_->next_view_number(); }
void NodeHeap::TakeViewNumbers(int first, int count) { impl_->TakeViewNumbers(first, count); }
std::byte* NodeHeap::Resolve(NodeAddress address) const { return impl_->Resolve(address); }
bool NodeHeap::Holds(NodeAddress address, size_t bytes) const { return impl_->Holds(address, bytes); }
size_t NodeHeap::segment_bytes() const { return impl_->memory().segment_bytes; }
size_t NodeHeap::allocated_bytes() const { return impl_->allocated_bytes(); }
size_t NodeHeap::peak_bytes() const { return impl_->peak_bytes(); }
size_t NodeHeap::total_allocated_bytes() const { return impl_->total_allocated_bytes(); }
bool NodeHeap::shared_between_processes() const { return impl_->memory().shared_between_processes; }
bool NodeHeap::poisons_released() const { return impl_->poisons_released(); }

}  // namespace weft
