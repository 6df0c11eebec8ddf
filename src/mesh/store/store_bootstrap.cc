#include "weft/mesh/store_bootstrap.h"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>

#include "src/mesh/base/environment_options.h"
#include "src/mesh/host/anonymous_memory.h"
#include "src/mesh/host/node_memory_limits.h"
#include "src/mesh/store/node_identity.h"
#include "src/mesh/store/shared_segment.h"
#include "src/mesh/store/store_gather.h"
#include "src/mesh/tcp/open_tcp_link.h"
#include "weft/core/status.h"
#include "weft/mesh/share_domain.h"

namespace weft {
namespace {

using internal::AnonymousMemory;
using internal::SharedSegment;
using internal::StoreGather;

absl::Status CheckRank(const StoreBootstrapOptions& options) {
  if (options.size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a job of ", options.size, " ranks: it needs at least one"));
  }
  if (options.rank >= 0 && options.rank < options.size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("rank ", options.rank, " is outside [0, ", options.size, ")"));
}

// Number of this bootstrap among those of this rank with this store and prefix, from 1. All ranks create them
// in the same order, so that bootstraps of equal numbers belong together.
absl::StatusOr<int64_t> NextGeneration(KeyValueStore& store, const StoreBootstrapOptions& options) {
  const std::string key = absl::StrCat(options.prefix, "/generations/", options.rank);
  int64_t last = 0;
  const absl::StatusOr<std::string> found = store.Get(key, absl::ZeroDuration());
  if (found.ok()) {
    if (!absl::SimpleAtoi(*found, &last)) {
      return absl::InternalError(absl::StrCat("the store has '", *found, "' at ", key,
                                              ": another program uses its keys; set another prefix"));
    }
  } else if (!absl::IsDeadlineExceeded(found.status())) {
    return found.status();
  }
  WEFT_RETURN_IF_ERROR(store.Set(key, absl::StrCat(last + 1)));
  return last + 1;
}

// Note [Keys of an earlier run]
// Problem: a rank that has missed an earlier start has a lower number than its peers. It meets the greetings
//   that they left under this number, and goes on, while they wait for it under theirs.
// Rule: a missed deadline of the start-up, or of the next exchange, says what to look for in the store.
// Why it suffices: in the earlier start a rank was missing, so that no peer got beyond the greetings. The
//   next exchange waits for keys that no run has set.
absl::Status WithRemedy(const absl::Status& missed, std::string_view context) {
  return absl::DeadlineExceededError(absl::StrCat(
      missed.message(), ToAbsl(context),
      ". If all ranks run, they have different stores or prefixes, two have the same rank, or the store has "
      "keys of an earlier run: give each job an empty store"));
}

// A rank's message to the others at the start. As text it has three fields with spaces between them. The
// identity of its node may have spaces.
struct Greeting {
  std::string size;
  std::string numa;
  std::string identity;

  std::string Encode() const { return absl::StrCat(size, " ", numa, " ", identity); }
  static Greeting Decode(const std::string& text) {
    const std::vector<std::string> fields = absl::StrSplit(text, absl::MaxSplits(' ', 2));
    return fields.size() == 3 ? Greeting{fields[0], fields[1], fields[2]} : Greeting{"unknown", "", ""};
  }
};

// Numbers nodes in the order of their lowest ranks.
NodeMap NodesOf(const std::vector<Greeting>& greetings) {
  NodeMap nodes;
  std::map<std::string, int> number_of;
  for (const Greeting& greeting : greetings) {
    const int next = static_cast<int>(number_of.size());
    nodes.node_of_rank.push_back(number_of.try_emplace(greeting.identity, next).first->second);
    int& numa = nodes.numa_of_rank.emplace_back();
    if (!absl::SimpleAtoi(greeting.numa, &numa)) numa = NodeMap::kNotBound;
  }
  return nodes;
}

class StoreBootstrap final : public Bootstrap {
 public:
  StoreBootstrap(const std::shared_ptr<KeyValueStore>& store, const StoreBootstrapOptions& options,
                 const std::string& prefix)
      : options_(options),
        nodes_(NodeMap::OneNode(options.size)),
        blobs_(store, absl::StrCat(prefix, "/blobs"), "all-gather of blobs", options.rank, options.size),
        addresses_(store, absl::StrCat(prefix, "/links"), "opening a link between nodes", options.rank,
                   options.size) {}

  // Finds the nodes. Collective.
  absl::Status Start();

  int rank() const override { return options_.rank; }
  const NodeMap& node_map() const override { return nodes_; }
  Runtime& runtime() override { return runtime_; }
  absl::StatusOr<std::vector<std::string>> AllGatherBlob(std::string_view blob,
                                                         absl::Duration timeout) override;
  absl::StatusOr<NodeMemory> ReserveNodeMemory(size_t segment_bytes) override;
  absl::StatusOr<FreeMemory> FreeNodeMemory() const override {
    // A segment is a file without a name: see Note [Memory without a name].
    return internal::FreeMemoryOfHost({.files = IsPrivate() ? 0 : nodes_.RanksOf(node()).size()});
  }
  absl::StatusOr<std::unique_ptr<WireLink>> OpenLink(absl::Duration timeout) override;
  std::string TransportName() const override { return "TCP sockets"; }
  int64_t link_count() const override { return links_; }
  void SkipLinks(int64_t count) override { links_ = std::max(links_, count); }

 private:
  // True if no rank has local peers: none then needs shared memory.
  bool IsPrivate() const { return nodes_.node_count() == size(); }
  absl::StatusOr<NodeMemory> ReservePrivate(size_t segment_bytes);
  absl::StatusOr<NodeMemory> ReserveShared(size_t segment_bytes);
  // Maps the segments of the other ranks of the node, ascending. `handles` is indexed by rank. Does not
  // communicate.
  absl::StatusOr<std::vector<SharedSegment>> MapSegmentsOfPeers(const std::vector<std::string>& handles,
                                                                size_t segment_bytes) const;

  const StoreBootstrapOptions options_;
  NodeMap nodes_;
  SystemRuntime runtime_;
  StoreGather blobs_;
  StoreGather addresses_;
  int64_t rounds_ = 0;  // The first is the exchange of greetings.
  int64_t links_ = 0;
  std::deque<std::vector<SharedSegment>> shared_memory_;
  std::deque<AnonymousMemory> own_memory_;
};

absl::Status StoreBootstrap::Start() {
  const Greeting own{absl::StrCat(options_.size), absl::StrCat(NumaNodeOrBinding(options_.numa_node)),
                     options_.node_id.empty() ? internal::NodeIdentity() : options_.node_id};
  const absl::StatusOr<std::string> text =
      options_.error.ok() ? absl::StatusOr<std::string>(own.Encode()) : options_.error;
  const auto parts = ExchangeBlobs(*this, "start-up", text, options_.startup_timeout);
  if (IsAgreedError(parts.status())) return Annotate(parts.status(), "start-up");
  WEFT_RETURN_IF_ERROR(parts.status());
  std::vector<Greeting> greetings;
  for (size_t rank = 0; rank < parts->size(); ++rank) {
    const Greeting& greeting = greetings.emplace_back(Greeting::Decode((*parts)[rank]));
    if (greeting.size == own.size) continue;
    return absl::InvalidArgumentError(absl::StrCat("start-up: rank ", rank, " is one of ", greeting.size,
                                                   " ranks, but rank ", options_.rank, " is one of ",
                                                   options_.size, ": start all with the same size"));
  }
  nodes_ = NodesOf(greetings);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> StoreBootstrap::AllGatherBlob(std::string_view blob,
                                                                       absl::Duration timeout) {
  auto blobs = blobs_.AllGather(++rounds_, blob, timeout);
  if (rounds_ > 2 || !absl::IsDeadlineExceeded(blobs.status())) return blobs;
  return WithRemedy(blobs.status(), rounds_ == 1 ? " (here WEFT_STARTUP_TIMEOUT_S)" : "");
}

absl::StatusOr<NodeMemory> StoreBootstrap::ReserveNodeMemory(size_t segment_bytes) {
  const size_t ranks = nodes_.RanksOf(node()).size();
  const absl::Status fits = internal::CheckReservation(FreeNodeMemory(), segment_bytes, segment_bytes, ranks);
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(*this, fits, options_.timeout));
  return IsPrivate() ? ReservePrivate(segment_bytes) : ReserveShared(segment_bytes);
}

absl::StatusOr<NodeMemory> StoreBootstrap::ReservePrivate(size_t segment_bytes) {
  WEFT_ASSIGN_OR_RETURN(AnonymousMemory memory, AnonymousMemory::Reserve(segment_bytes));
  own_memory_.push_back(std::move(memory));
  return NodeMemory{{{rank(), own_memory_.back().base()}}, segment_bytes, /*shared_between_processes=*/false};
}

absl::StatusOr<NodeMemory> StoreBootstrap::ReserveShared(size_t segment_bytes) {
  absl::StatusOr<SharedSegment> own = SharedSegment::Create(segment_bytes);
  WEFT_ASSIGN_OR_RETURN(
      const std::vector<std::string> handles,
      ExchangeBlobs(*this, "node memory",
                    own.ok() ? absl::StatusOr<std::string>(own->handle()) : own.status(), options_.timeout));
  auto segments = MapSegmentsOfPeers(handles, segment_bytes);
  // The owner of a segment keeps its descriptor until all peers have mapped it.
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(*this, segments.status(), options_.timeout));
  NodeMemory memory{{}, segment_bytes, /*shared_between_processes=*/true};
  const std::vector<int> ranks = nodes_.RanksOf(node());
  own->Seal();
  segments->insert(segments->begin() + (std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin()),
                   *std::move(own));
  for (size_t i = 0; i < ranks.size(); ++i) {
    memory.segments.push_back({ranks[i], (*segments)[i].base()});
  }
  shared_memory_.push_back(*std::move(segments));
  return memory;
}

absl::StatusOr<std::vector<SharedSegment>> StoreBootstrap::MapSegmentsOfPeers(
    const std::vector<std::string>& handles, size_t segment_bytes) const {
  std::vector<SharedSegment> segments;
  for (const int peer : nodes_.RanksOf(node())) {
    if (peer == rank()) continue;
    auto segment = SharedSegment::Map(handles[static_cast<size_t>(peer)], segment_bytes);
    if (!segment.ok()) return Annotate(segment.status(), absl::StrCat("memory of rank ", peer));
    segments.push_back(*std::move(segment));
  }
  return segments;
}

absl::StatusOr<std::unique_ptr<WireLink>> StoreBootstrap::OpenLink(absl::Duration timeout) {
  return internal::OpenTcpLink(options_.rank, options_.network, [&](std::string_view own) {
    return addresses_.AllGather(++links_, own, timeout);
  });
}

absl::StatusOr<int> NumberFromEnvironment(const char* variable) {
  const char* text = std::getenv(variable);
  int number = 0;
  if (text != nullptr && absl::SimpleAtoi(text, &number)) return number;
  return absl::InvalidArgumentError(
      absl::StrCat(variable, text == nullptr ? " is not set" : absl::StrCat(" is '", text, "'"),
                   ": the launcher of the ranks must set RANK and WORLD_SIZE to numbers, as torchrun does"));
}

}  // namespace

absl::StatusOr<StoreBootstrapOptions> StoreBootstrapOptions::FromEnvironment() {
  StoreBootstrapOptions options;
  WEFT_ASSIGN_OR_RETURN(options.rank, NumberFromEnvironment("RANK"));
  WEFT_ASSIGN_OR_RETURN(options.size, NumberFromEnvironment("WORLD_SIZE"));
  internal::TakeCommonOptions(options);
  if (const char* const node = std::getenv("WEFT_NODE_ID"); node != nullptr) options.node_id = node;
  return options;
}

absl::StatusOr<std::unique_ptr<Bootstrap>> MakeStoreBootstrap(const std::shared_ptr<KeyValueStore>& store,
                                                              const StoreBootstrapOptions& options) {
  WEFT_RETURN_IF_ERROR(CheckRank(options));
  WEFT_ASSIGN_OR_RETURN(const int64_t generation, NextGeneration(*store, options));
  auto bootstrap =
      std::make_unique<StoreBootstrap>(store, options, absl::StrCat(options.prefix, "/", generation));
  WEFT_RETURN_IF_ERROR(bootstrap->Start());
  return bootstrap;
}

}  // namespace weft
