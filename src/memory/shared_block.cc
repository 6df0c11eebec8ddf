#include "weft/memory/shared_block.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <new>
#include <string>
#include <utility>

#include <absl/strings/str_join.h>

#include "weft/core/hash.h"
#include "weft/core/status.h"

namespace weft {
namespace {

// Lies in front of every block, on its own cache line. See Note [Releasing shared blocks].
using HolderCount = std::atomic<int32_t>;
constexpr size_t kHeaderBytes = 64;

HolderCount& HoldersOf(std::byte* data) { return *reinterpret_cast<HolderCount*>(data - kHeaderBytes); }

// One block in a message to all ranks. Ranks first exchange the sizes of their blocks, then the offsets.
struct Announcement {
  uint64_t holders;  // Hash of the holders' ranks.
  uint64_t value;    // Size or offset, in bytes.

  friend bool operator==(const Announcement&, const Announcement&) = default;
};
using Announcements = std::vector<Announcement>;

uint64_t HashOf(const std::vector<int>& holders) {
  return Hash64(holders.data(), holders.size() * sizeof(int));
}

absl::StatusOr<std::vector<Announcements>> Exchange(Bootstrap& bootstrap, const Announcements& own,
                                                    absl::Duration timeout) {
  const std::string_view blob(reinterpret_cast<const char*>(own.data()), own.size() * sizeof(Announcement));
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> blobs, bootstrap.AllGatherBlob(blob, timeout));
  std::vector<Announcements> all;
  for (const std::string& theirs : blobs) {
    if (theirs.size() % sizeof(Announcement) != 0) {
      return absl::InternalError(
          "a rank sent no list of shared blocks: all ranks must call ShareBlocks at the same point of the "
          "program");
    }
    all.emplace_back(theirs.size() / sizeof(Announcement));
    std::memcpy(all.back().data(), theirs.data(), theirs.size());
  }
  return all;
}

// The values of a rank's announcements for blocks of the given holders, in the order of the announcements.
std::vector<uint64_t> ValuesOf(const Announcements& announcements, uint64_t holders) {
  std::vector<uint64_t> values;
  for (const Announcement& block : announcements) {
    if (block.holders == holders) values.push_back(block.value);
  }
  return values;
}

absl::Status CheckHolders(const Bootstrap& bootstrap, const std::vector<int>& holders) {
  const NodeMap& nodes = bootstrap.node_map();
  const auto elsewhere = [&](int rank) {
    return rank < 0 || rank >= nodes.size() || !nodes.SameNode(rank, bootstrap.rank());
  };
  const bool ascending =
      std::adjacent_find(holders.begin(), holders.end(), std::greater_equal<>()) == holders.end();
  const bool holds = std::find(holders.begin(), holders.end(), bootstrap.rank()) != holders.end();
  if (ascending && holds && std::none_of(holders.begin(), holders.end(), elsewhere)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("holders of a shared block are ", absl::StrJoin(holders, ", "),
                   ": they must be ranks of the node of rank ", bootstrap.rank(),
                   ", in ascending order, and include that rank"));
}

// Errors: kInvalidArgument if two holders of a block request different blocks for that set of holders.
absl::Status CheckRequestsMatch(const Bootstrap& bootstrap, absl::Span<const SharedBlockRequest> requests,
                                const std::vector<Announcements>& listed) {
  for (const SharedBlockRequest& request : requests) {
    WEFT_RETURN_IF_ERROR(CheckHolders(bootstrap, request.holders));
    const uint64_t hash = HashOf(request.holders);
    const auto own = ValuesOf(listed[static_cast<size_t>(bootstrap.rank())], hash);
    for (const int holder : request.holders) {
      const auto theirs = ValuesOf(listed[static_cast<size_t>(holder)], hash);
      if (theirs == own) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "for the blocks that ranks ", absl::StrJoin(request.holders, ", "), " share, rank ",
          bootstrap.rank(), " requests sizes ", absl::StrJoin(own, ", "), ", but rank ", holder, " requests ",
          absl::StrJoin(theirs, ", "), ": they must request the same blocks in the same order"));
    }
  }
  return absl::OkStatus();
}

// The owner of each block: the holder that owns the fewest bytes of this set of holders so far; of several,
// the lowest rank. All holders compute the same owners, as they request the same blocks in the same order.
std::vector<int> ChooseOwners(absl::Span<const SharedBlockRequest> requests) {
  std::map<std::vector<int>, std::map<int, uint64_t>> filled_by;  // Holders to bytes per holder.
  std::vector<int> owners;
  for (const SharedBlockRequest& request : requests) {
    std::map<int, uint64_t>& filled = filled_by[request.holders];
    const int owner = *std::min_element(request.holders.begin(), request.holders.end(),
                                        [&](int a, int b) { return filled[a] < filled[b]; });
    filled[owner] += request.bytes;
    owners.push_back(owner);
  }
  return owners;
}

absl::StatusOr<std::byte*> AllocateBlock(NodeHeap& heap, const SharedBlockRequest& request) {
  WEFT_ASSIGN_OR_RETURN(std::byte * block, heap.Allocate(kHeaderBytes + request.bytes));
  auto* holders = new (block) HolderCount(static_cast<int32_t>(request.holders.size()));
  heap.DeferFree(block, *holders);
  std::memset(block + kHeaderBytes, 0, request.bytes);
  return block + kHeaderBytes;
}

// Allocates the blocks that this rank owns, and leaves null for the others. After an error on any rank, all
// blocks are freed again.
absl::Status AllocateOwnedBlocks(Bootstrap& bootstrap, NodeHeap& heap,
                                 absl::Span<const SharedBlockRequest> requests,
                                 const std::vector<int>& owners, absl::Duration timeout,
                                 std::vector<std::byte*>& blocks) {
  const auto allocate_owned = [&]() -> absl::Status {
    for (size_t i = 0; i < requests.size(); ++i) {
      if (owners[i] != bootstrap.rank()) continue;
      WEFT_ASSIGN_OR_RETURN(blocks[i], AllocateBlock(heap, requests[i]));
    }
    return absl::OkStatus();
  };
  absl::Status made = AgreeOnStatus(bootstrap, allocate_owned(), timeout);
  if (made.ok()) return made;
  for (std::byte* block : blocks) {
    if (block != nullptr) HoldersOf(block).store(0, std::memory_order_release);  // No peer has its address.
  }
  return made;
}

}  // namespace

SharedBlock::SharedBlock(SharedBlock&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

SharedBlock& SharedBlock::operator=(SharedBlock&& other) noexcept {
  if (this == &other) return *this;
  const SharedBlock released(std::move(*this));
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

// The owner's acquire load of 0 synchronizes with every decrement: all accesses of all holders happen before
// the memory is reused.
SharedBlock::~SharedBlock() {
  if (data_ != nullptr) HoldersOf(data_).fetch_sub(1, std::memory_order_acq_rel);
}

absl::StatusOr<std::vector<SharedBlock>> ShareBlocks(Bootstrap& bootstrap, NodeHeap& heap,
                                                     absl::Span<const SharedBlockRequest> requests,
                                                     absl::Duration timeout) {
  Announcements sizes;
  for (const SharedBlockRequest& request : requests)
    sizes.push_back({HashOf(request.holders), request.bytes});
  WEFT_ASSIGN_OR_RETURN(const std::vector<Announcements> listed, Exchange(bootstrap, sizes, timeout));
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, CheckRequestsMatch(bootstrap, requests, listed), timeout));
  const std::vector<int> owners = ChooseOwners(requests);
  std::vector<std::byte*> blocks(requests.size(), nullptr);
  WEFT_RETURN_IF_ERROR(AllocateOwnedBlocks(bootstrap, heap, requests, owners, timeout, blocks));

  Announcements offsets;
  for (size_t i = 0; i < requests.size(); ++i) {
    const uint64_t offset = blocks[i] == nullptr ? 0 : heap.AddressOf(blocks[i])->offset;
    offsets.push_back({HashOf(requests[i].holders), offset});
  }
  WEFT_ASSIGN_OR_RETURN(const std::vector<Announcements> made, Exchange(bootstrap, offsets, timeout));
  std::map<std::vector<int>, size_t> places;  // Number of blocks resolved so far, for each set of holders.
  std::vector<SharedBlock> shared;
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto theirs = ValuesOf(made[static_cast<size_t>(owners[i])], HashOf(requests[i].holders));
    std::byte* data = heap.Resolve({owners[i], theirs[places[requests[i].holders]++]});
    shared.push_back(SharedBlock(data, requests[i].bytes));
  }
  return shared;
}

}  // namespace weft
