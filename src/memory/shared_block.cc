#include "weft/memory/shared_block.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <new>
#include <string>
#include <utility>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "src/memory/page_view.h"
#include "weft/core/hash.h"
#include "weft/core/page_bytes.h"
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
  const std::string blob(reinterpret_cast<const char*>(own.data()), own.size() * sizeof(Announcement));
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> blobs,
                        ExchangeBlobs(bootstrap, "shared blocks", blob, timeout));
  std::vector<Announcements> all;
  for (const std::string& theirs : blobs) {
    WEFT_CHECK(theirs.size() % sizeof(Announcement) == 0, "a rank sent no list of shared blocks");
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

// A part of a block, in the segment of one holder.
struct Stripe {
  size_t request;
  int owner;
  size_t bytes;
  bool is_whole;  // True if the stripe is the whole block.
};

std::vector<Stripe> WholeBlocks(absl::Span<const SharedBlockRequest> requests) {
  const std::vector<int> owners = ChooseOwners(requests);
  std::vector<Stripe> stripes;
  for (size_t i = 0; i < requests.size(); ++i) stripes.push_back({i, owners[i], requests[i].bytes, true});
  return stripes;
}

// Every holder of a block owns an equal number of its pages; the last ones may own fewer or none.
std::vector<Stripe> StripedBlocks(absl::Span<const SharedBlockRequest> requests) {
  const size_t page = PageBytes();
  std::vector<Stripe> stripes = WholeBlocks(requests);
  std::vector<Stripe> striped;
  for (const Stripe& whole : stripes) {
    const std::vector<int>& holders = requests[whole.request].holders;
    const size_t pages = (whole.bytes + page - 1) / page;
    if (holders.size() < 2 || pages < holders.size()) {
      striped.push_back(whole);
      continue;
    }
    const size_t each = (pages + holders.size() - 1) / holders.size();
    for (size_t h = 0, first = 0; first < pages; ++h, first += each) {
      striped.push_back({whole.request, holders[h], std::min(each, pages - first) * page, false});
    }
  }
  return striped;
}

// Allocates a stripe: a count of holders, and then the stripe's bytes, which are zero. They start at a page
// unless the stripe is the whole block. A stripe without bytes takes one, so that its address lies in the
// segment. Returns the address of the bytes.
absl::StatusOr<std::byte*> AllocateStripe(NodeHeap& heap, const Stripe& stripe, size_t holders) {
  const size_t alignment = stripe.is_whole ? kHeaderBytes : PageBytes();
  WEFT_ASSIGN_OR_RETURN(std::byte * block, heap.Allocate(kHeaderBytes + std::max<size_t>(stripe.bytes, 1) +
                                                         (stripe.is_whole ? 0 : alignment)));
  const auto address = reinterpret_cast<uintptr_t>(block) + kHeaderBytes;
  std::byte* data = block + kHeaderBytes + (alignment - address % alignment) % alignment;
  auto* count = new (data - kHeaderBytes) HolderCount(static_cast<int32_t>(holders));
  heap.DeferFree(block, *count);
  std::memset(data, 0, stripe.bytes);
  return data;
}

// Allocates the stripes that this rank owns, and returns null for the others. After an error on any rank, all
// stripes are freed again, and all ranks return the error.
absl::StatusOr<std::vector<std::byte*>> AllocateOwned(Bootstrap& bootstrap, NodeHeap& heap,
                                                      absl::Span<const SharedBlockRequest> requests,
                                                      const std::vector<Stripe>& stripes,
                                                      absl::Duration timeout) {
  std::vector<std::byte*> own(stripes.size(), nullptr);
  const auto allocate = [&]() -> absl::Status {
    for (size_t i = 0; i < stripes.size(); ++i) {
      if (stripes[i].owner != bootstrap.rank()) continue;
      WEFT_ASSIGN_OR_RETURN(own[i],
                            AllocateStripe(heap, stripes[i], requests[stripes[i].request].holders.size()));
    }
    return absl::OkStatus();
  };
  const absl::Status made = AgreeOnStatus(bootstrap, allocate(), timeout);
  if (made.ok()) return own;
  for (std::byte* data : own) {
    if (data != nullptr) HoldersOf(data).store(0, std::memory_order_release);  // No peer has its address.
  }
  return made;
}

// Addresses of all stripes of this rank's requests.
absl::StatusOr<std::vector<NodeAddress>> ExchangeAddresses(Bootstrap& bootstrap, const NodeHeap& heap,
                                                           absl::Span<const SharedBlockRequest> requests,
                                                           const std::vector<Stripe>& stripes,
                                                           const std::vector<std::byte*>& own,
                                                           absl::Duration timeout) {
  Announcements offsets;
  for (size_t i = 0; i < stripes.size(); ++i) {
    const uint64_t offset = own[i] == nullptr ? 0 : heap.AddressOf(own[i])->offset;
    offsets.push_back({HashOf(requests[stripes[i].request].holders), offset});
  }
  WEFT_ASSIGN_OR_RETURN(const std::vector<Announcements> made, Exchange(bootstrap, offsets, timeout));
  std::map<std::vector<int>, size_t> listed;  // Stripes listed so far, for each set of holders.
  std::vector<NodeAddress> addresses;
  for (const Stripe& stripe : stripes) {
    const std::vector<int>& holders = requests[stripe.request].holders;
    const auto theirs = ValuesOf(made[static_cast<size_t>(stripe.owner)], HashOf(holders));
    addresses.push_back({stripe.owner, theirs[listed[holders]++]});
  }
  return addresses;
}

// The first view number that is free on all ranks. Their own numbers differ if a rank has missed a deadline
// between an agreement on blocks and the end of ShareBlocks. Collective.
// Errors: that of `checked` on any rank.
absl::StatusOr<int> AgreeOnViewNumber(Bootstrap& bootstrap, const NodeHeap& heap, const absl::Status& checked,
                                      absl::Duration timeout) {
  const std::string own = absl::StrCat(heap.next_view_number());
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> numbers,
                        ExchangeBlobs(bootstrap, "numbers of views",
                                      checked.ok() ? absl::StatusOr<std::string>(own) : checked, timeout));
  int first = 0;
  for (const std::string& theirs : numbers) {
    int number = 0;
    WEFT_CHECK(absl::SimpleAtoi(theirs, &number), "a rank sent no number of a view");
    first = std::max(first, number);
  }
  return first;
}

// View numbers of this rank's requests, one for each. All holders of a block compute the same number, which
// no other block has.
std::vector<int> NumberViews(NodeHeap& heap, int first, absl::Span<const SharedBlockRequest> requests,
                             const std::vector<Announcements>& listed) {
  std::map<uint64_t, int> blocks_of;  // Number of blocks, by hash of the holders.
  for (const Announcements& announced : listed) {
    for (const Announcement& block : announced) {
      blocks_of[block.holders] = static_cast<int>(ValuesOf(announced, block.holders).size());
    }
  }
  int count = 0;
  for (auto& [holders, blocks] : blocks_of) count += std::exchange(blocks, count);
  heap.TakeViewNumbers(first, count);
  std::vector<int> numbers;
  numbers.reserve(requests.size());
  for (const SharedBlockRequest& request : requests) {
    numbers.push_back(first + blocks_of[HashOf(request.holders)]++);
  }
  return numbers;
}

// A stripe of a view, in a message to all ranks.
struct ViewStripe {
  int view;
  int owner;
  uint64_t offset;
  uint64_t bytes;
};

// Maps the striped blocks of all ranks of the node, and returns the addresses by view number. Ranks that do
// not hold a block map it too: holders may give them addresses in it, as buffers of a collective of another
// group. Collective.
absl::StatusOr<std::map<int, std::byte*>> MapViews(Bootstrap& bootstrap, NodeHeap& heap,
                                                   const std::vector<ViewStripe>& own,
                                                   absl::Duration timeout) {
  const std::string blob(reinterpret_cast<const char*>(own.data()), own.size() * sizeof(ViewStripe));
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> blobs,
                        ExchangeBlobs(bootstrap, "views of shared blocks", blob, timeout));
  std::map<int, std::byte*> views;
  for (const int rank : bootstrap.node_map().RanksOf(bootstrap.node())) {
    const std::string& theirs = blobs[static_cast<size_t>(rank)];
    WEFT_CHECK(theirs.size() % sizeof(ViewStripe) == 0, "a rank sent no list of views");
    if (theirs.empty()) continue;
    std::vector<ViewStripe> stripes(theirs.size() / sizeof(ViewStripe));
    std::memcpy(stripes.data(), theirs.data(), theirs.size());
    std::map<int, std::vector<NodeHeap::Range>> ranges_of;
    for (const ViewStripe& stripe : stripes) {
      if (!views.contains(stripe.view))
        ranges_of[stripe.view].push_back({{stripe.owner, stripe.offset}, stripe.bytes});
    }
    for (const auto& [view, ranges] : ranges_of) {
      WEFT_ASSIGN_OR_RETURN(views[view], heap.MapEndToEnd(view, ranges));
    }
  }
  return views;
}

}  // namespace

SharedBlock::SharedBlock(SharedBlock&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      stripes_(std::exchange(other.stripes_, {})) {}

SharedBlock& SharedBlock::operator=(SharedBlock&& other) noexcept {
  if (this == &other) return *this;
  Release();
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  stripes_ = std::exchange(other.stripes_, {});
  return *this;
}

SharedBlock::~SharedBlock() { Release(); }

// The owner's acquire load of 0 synchronizes with every decrement: all accesses of all holders happen before
// the memory is reused.
void SharedBlock::Release() {
  for (std::byte* stripe : stripes_) HoldersOf(stripe).fetch_sub(1, std::memory_order_acq_rel);
}

absl::StatusOr<std::vector<SharedBlock>> ShareBlocks(Bootstrap& bootstrap, NodeHeap& heap,
                                                     absl::Span<const SharedBlockRequest> requests,
                                                     absl::Duration timeout) {
  Announcements sizes;
  for (const SharedBlockRequest& request : requests)
    sizes.push_back({HashOf(request.holders), request.bytes});
  WEFT_ASSIGN_OR_RETURN(const std::vector<Announcements> listed, Exchange(bootstrap, sizes, timeout));
  WEFT_ASSIGN_OR_RETURN(
      const int first_view,
      AgreeOnViewNumber(bootstrap, heap, CheckRequestsMatch(bootstrap, requests, listed), timeout));
  const std::vector<int> numbers = NumberViews(heap, first_view, requests, listed);

  std::vector<Stripe> stripes = WholeBlocks(requests);
  absl::StatusOr<std::vector<std::byte*>> own = AllocateOwned(bootstrap, heap, requests, stripes, timeout);
  const bool is_striped = absl::IsResourceExhausted(own.status());
  if (is_striped) {
    stripes = StripedBlocks(requests);
    own = AllocateOwned(bootstrap, heap, requests, stripes, timeout);
  }
  WEFT_RETURN_IF_ERROR(own.status());
  WEFT_ASSIGN_OR_RETURN(const std::vector<NodeAddress> addresses,
                        ExchangeAddresses(bootstrap, heap, requests, stripes, *own, timeout));

  std::vector<std::vector<std::byte*>> stripes_of(requests.size());
  std::vector<ViewStripe> view_stripes;
  for (size_t i = 0; i < stripes.size(); ++i) {
    const Stripe& stripe = stripes[i];
    stripes_of[stripe.request].push_back(heap.Resolve(addresses[i]));
    if (!stripe.is_whole) {
      view_stripes.push_back({numbers[stripe.request], addresses[i].rank, addresses[i].offset, stripe.bytes});
    }
  }
  std::map<int, std::byte*> views;
  absl::Status mapped;
  if (is_striped) {
    absl::StatusOr<std::map<int, std::byte*>> all = MapViews(bootstrap, heap, view_stripes, timeout);
    mapped = all.status();
    if (all.ok()) views = *std::move(all);
  }
  std::vector<SharedBlock> shared;
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto view = views.find(numbers[i]);
    std::byte* const data = view != views.end() ? view->second : stripes_of[i].front();
    shared.push_back(SharedBlock(data, requests[i].bytes, std::move(stripes_of[i])));
  }
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, mapped, timeout));
  return shared;
}

}  // namespace weft
