#include "sharding/group/group_agreement.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <absl/algorithm/container.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include "sharding/group/exchange_lists.h"
#include "sharding/plan/replica_slices.h"
#include "weft/core/hash.h"
#include "weft/core/status.h"
#include "weft/mesh/simulation.h"

namespace weft {
namespace {

// Hashes of what some ranks must have alike of a group, and their names in messages.
struct Fingerprint {
  uint64_t parameters = 0, trainable = 0, dtypes = 0, dims = 0, replicas = 0, elements = 0, parts = 0,
           divisor = 0, count = 0;

  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};
constexpr std::pair<uint64_t Fingerprint::*, absl::string_view> kAspects[] = {
    {&Fingerprint::parameters, "its name, its parameters, their shapes or their order"},
    {&Fingerprint::trainable, "requires_grad or trained_later"},
    {&Fingerprint::dtypes, "dtypes"},
    {&Fingerprint::dims, "shard_dim"},
    {&Fingerprint::replicas, "replicate_group, or their place in the shard group"},
    {&Fingerprint::parts, "layout, reshard_after_forward_size or mesh_of"},
    {&Fingerprint::elements,
     "the elements in their shards (with the layout kContiguous, sizes of all parameters of the group "
     "determine these)"},
    {&Fingerprint::divisor, "gradient_divide_factor"},
    {&Fingerprint::count, "its number of parameters"}};

enum class Relation : int32_t { kShards, kReplicates, kAgrees };

// A parameter group as a rank describes it to others: the whole of it to a shard group, its parameters of one
// bucket to a replicate group, or their number to all ranks. There is none for groups of one rank.
struct Announcement {
  uint64_t ranks;  // Hash of the relation and of the ranks to which the group is described.
  Relation relation;
  int32_t size;  // Number of these ranks.
  int64_t number;
  Fingerprint fingerprint;

  friend bool operator==(const Announcement&, const Announcement&) = default;
};
static_assert(sizeof(Announcement) == 24 + sizeof(Fingerprint), "messages have no padding");
using Announcements = std::vector<Announcement>;
// Values of `ranks` for descriptions to all ranks. The differences of smaller groups are reported first.
constexpr uint64_t kOfAllRanks = std::numeric_limits<uint64_t>::max();
constexpr uint64_t kOptions = kOfAllRanks - 1;

template <typename... Values>
void Add(uint64_t& hash, Values... values) {
  ((hash = HashCombine(hash, static_cast<uint64_t>(values))), ...);
}

// `bucket`: covers the parameters of this one; unset: of all.
Fingerprint FingerprintOf(const GroupSpec& spec, const ShardingPolicy& policy, std::optional<int> bucket) {
  Fingerprint of;
  of.parameters = Hash64(spec.name());
  for (size_t i = 0; i < spec.parameters().size(); ++i) {
    const FlatParameter& parameter = spec.layout.parameters()[i];
    if (bucket.value_or(parameter.replicate_bucket) != parameter.replicate_bucket) continue;
    Add(of.parameters, Hash64(spec.parameters()[i]->name), parameter.shape.size());
    for (const int64_t size : parameter.shape) Add(of.parameters, size);
    Add(of.trainable, parameter.trainable);
    Add(of.dims, parameter.shard_dim);
    if (!bucket) Add(of.replicas, parameter.replicate_bucket);
  }
  const ParameterDTypes& dtypes = spec.dtypes;
  Add(of.dtypes, dtypes.param, dtypes.reduce, dtypes.gradient_dtype(), dtypes.master);
  Add(of.parts, spec.layout.kind(), spec.mesh);
  Add(of.divisor, std::bit_cast<uint64_t>(policy.gradient_divide_factor));
  if (bucket) return of;
  Add(of.parts, spec.regather_size);
  return of;
}

// The elements of a bucket in a rank's shard, in the order in which they are reduced.
uint64_t HashElements(const GroupSpec& spec, int bucket, int shard_rank) {
  uint64_t hash = 0;
  for (const BucketSlice& slice : spec.layout.BucketSlices(shard_rank)) {
    if (slice.bucket != bucket) continue;
    Add(hash, slice.range.count);
    for (const ShardPiece& whole : spec.layout.Pieces(shard_rank)) {
      const Parameter& parameter = *spec.parameters()[static_cast<size_t>(whole.parameter)];
      for (const ShardPiece& piece : CutPiece(whole, slice.range)) {
        Add(hash, Hash64(parameter.name), piece.shard_offset - slice.range.begin, piece.start, piece.runs,
            piece.run_length, piece.run_stride);
      }
    }
  }
  return hash;
}

void Announce(Announcements& list, const ProcessGroup& ranks, Relation relation, int64_t number,
              Fingerprint fingerprint) {
  if (ranks.size() == 1) return;
  const uint64_t hash =
      Hash64(ranks.ranks.data(), ranks.ranks.size() * sizeof(int), static_cast<uint64_t>(relation));
  list.push_back({hash, relation, ranks.size(), number, fingerprint});
}

Announcements AnnouncementsOf(const ShardingPlan& plan, int all_ranks) {
  Announcements list;
  for (size_t i = 0; i < plan.specs.size(); ++i) {
    const GroupSpec& spec = plan.specs[i];
    const auto number = static_cast<int64_t>(i);
    const ProcessGroup& shard = plan.meshes.meshes[static_cast<size_t>(spec.mesh)].shard;
    Announce(list, shard, Relation::kShards, number, FingerprintOf(spec, plan.policy, std::nullopt));
    const std::vector<ProcessGroup>& replicate = plan.buckets[static_cast<size_t>(spec.mesh)].groups;
    for (int bucket = 0; bucket < std::ssize(replicate); ++bucket) {
      const auto in_bucket = [&](const FlatParameter& p) { return p.replicate_bucket == bucket; };
      if (std::ranges::none_of(spec.layout.parameters(), in_bucket)) continue;
      Fingerprint fingerprint = FingerprintOf(spec, plan.policy, bucket);
      Add(fingerprint.replicas, shard.size(), shard.group_rank);
      fingerprint.elements = HashElements(spec, bucket, shard.group_rank);
      Announce(list, replicate[static_cast<size_t>(bucket)], Relation::kReplicates, number, fingerprint);
    }
    Fingerprint fingerprint;
    if (plan.policy.unused_gradients == UnusedGradients::kNone) fingerprint.count = spec.parameters().size();
    list.push_back({kOfAllRanks, Relation::kAgrees, all_ranks, number, fingerprint});
  }
  return list;
}

// Options that decide about collectives of all ranks, or about the order of those of a shard group and those
// of its replicate groups: PipelineLanes numbers both in one sequence.
std::vector<OptionValue> OptionsOf(const ShardingPlan& plan) {
  const ShardingPolicy& policy = plan.policy;
  const auto option = [](const char* name, std::string_view value) {
    return OptionValue{name, std::string(value), absl::StrCat("set ShardingPolicy::", name)};
  };
  const auto is_on = [&option](const char* name, bool value) { return option(name, value ? "on" : "off"); };
  // If images have no room, ranks with NodeShared::kAuto agree on private ones.
  const bool may_change =
      policy.node_shared == NodeShared::kAuto && plan.residency.residency != Residency::kPrivate;
  return {option("unused_gradients", policy.unused_gradients == UnusedGradients::kNone ? "none" : "zero"),
          is_on("shard_optimizer_over_replicas", policy.shard_optimizer_over_replicas),
          option("wire_compression", Name(policy.wire_compression)),
          is_on("reshard_after_forward", policy.reshard_after_forward),
          is_on("reshard_root_after_forward", policy.reshard_root_after_forward),
          option("prefetch_depth", absl::StrCat(policy.PrefetchDepth())),
          option("max_reduce_scatters", absl::StrCat(policy.max_reduce_scatters)),
          {"the residency of images",
           absl::StrCat(ToAbsl(Name(plan.residency.residency)), may_change ? " (if they have room)" : ""),
           "set node_shared, layout, mesh_of and reshard_after_forward_size of ShardingPolicy"}};
}

// Numbers of the lanes of each mesh. All ranks take part in making each lane, in one order: see
// PipelineLanes::AddLanes. Differences of groups explain more, and are reported first.
std::vector<OptionValue> LanesOf(const ShardingPlan& plan) {
  std::vector<std::set<int>> sizes(plan.buckets.size());  // By mesh.
  for (const GroupSpec& spec : plan.specs) {
    if (spec.regather_size > 0) sizes[static_cast<size_t>(spec.mesh)].insert(spec.regather_size);
  }
  const auto by_mesh = [&](const auto& number) {
    std::vector<size_t> numbers;
    for (size_t mesh = 0; mesh < sizes.size(); ++mesh) numbers.push_back(number(mesh));
    return absl::StrJoin(numbers, ", ");
  };
  return {{"the number of replicate groups",
           by_mesh([&](size_t mesh) { return plan.buckets[mesh].groups.size(); }),
           "return as many groups by replicate_group"},
          {"the number of regather sizes", by_mesh([&](size_t mesh) { return sizes[mesh].size(); }),
           "name as many sizes by reshard_after_forward_size or reshard_after_forward_size_of"}};
}

// All announcements to a shard group, a replicate group or all ranks; or, as kOptions, the options and lanes
// of a rank.
struct Summary {
  uint64_t ranks;  // Announcement::ranks, or kOptions.
  int64_t size;
  uint64_t hash;

  friend bool operator==(const Summary&, const Summary&) = default;
};
static_assert(sizeof(Summary) == 24, "messages have no padding");

std::vector<Summary> SummariesOf(const ShardingPlan& plan, int all_ranks) {
  std::map<uint64_t, Summary> by_ranks;
  for (const Announcement& group : AnnouncementsOf(plan, all_ranks)) {
    Summary& summary = by_ranks.try_emplace(group.ranks, Summary{group.ranks, group.size, 0}).first->second;
    Add(summary.hash, Hash64(&group, sizeof(group)));
  }
  Summary of_options{kOptions, all_ranks, 0};
  for (const std::vector<OptionValue>& options : {OptionsOf(plan), LanesOf(plan)}) {
    for (const OptionValue& option : options) Add(of_options.hash, Hash64(option.value));
  }
  std::vector<Summary> summaries = {of_options};
  for (const auto& [ranks, summary] : by_ranks) summaries.push_back(summary);
  return summaries;
}

// True if all ranks to which something is described have the same summary of it.
bool AreAlike(const std::vector<std::vector<Summary>>& lists) {
  struct Members {
    Summary summary;
    int64_t count = 0;
  };
  std::map<uint64_t, Members> by_ranks;
  for (const std::vector<Summary>& list : lists) {
    for (const Summary& summary : list) {
      Members& members = by_ranks.try_emplace(summary.ranks, Members{summary}).first->second;
      ++members.count;
      if (members.summary != summary) return false;
    }
  }
  return absl::c_all_of(by_ranks,
                        [](const auto& entry) { return entry.second.count == entry.second.summary.size; });
}

std::string NameOf(const ShardingPlan& plan, int64_t number) {
  return number < std::ssize(plan.specs) ? plan.specs[static_cast<size_t>(number)].name()
                                         : absl::StrCat("number ", number);
}

// A difference between ranks, of the same group if there is a number.
struct Difference {
  std::string text;
  std::string remedy;
  int rank = 0;
  int other_rank = 0;
  Relation relation = Relation::kAgrees;
  std::optional<int64_t> number = std::nullopt;
};

// The difference between the lists of two ranks, of announcements to the same ranks.
Difference DifferenceOf(const ShardingPlan& plan, int rank, const Announcements& list, int other_rank,
                        const Announcements& others) {
  const Relation relation = list.front().relation;
  if (relation == Relation::kAgrees && list.size() != others.size()) {
    return {absl::StrCat("rank ", rank, " has ", list.size(), " parameter groups, but rank ", other_rank,
                         " has ", others.size()),
            "give all ranks as many"};
  }
  const auto first = std::ranges::mismatch(list, others);
  const auto mine = first.in1;
  const auto theirs = first.in2;
  absl::string_view aspect = kAspects[0].second;
  int64_t number = 0;
  if (mine != list.end() && theirs != others.end() && mine->number == theirs->number) {
    number = mine->number;
    const auto differs = [&](const auto& entry) {
      return mine->fingerprint.*entry.first != theirs->fingerprint.*entry.first;
    };
    aspect = std::ranges::find_if(kAspects, differs)->second;
  } else {
    number = mine == list.end()       ? theirs->number
             : theirs == others.end() ? mine->number
                                      : std::min(mine->number, theirs->number);
  }
  constexpr std::array<absl::string_view, 3> kRelations = {
      "hold shards of it", "reduce its gradients together", "agree on its used parameters"};
  return {absl::StrCat("parameter group '", NameOf(plan, number), "': ranks ", rank, " and ", other_rank, " ",
                       kRelations[static_cast<size_t>(relation)], ", but differ in ", aspect),
          "give both ranks the same",
          rank,
          other_rank,
          relation,
          number};
}

// The first difference between the lists of ranks. Nothing if there is none.
std::optional<Difference> FirstDifference(const ShardingPlan& plan, const std::vector<Announcements>& lists) {
  struct Members {
    int first;  // The lowest rank.
    Announcements list;
    int count = 0;
  };
  std::map<uint64_t, Members> by_ranks;
  for (int rank = 0; rank < std::ssize(lists); ++rank) {
    std::map<uint64_t, Announcements> of_rank;
    for (const Announcement& group : lists[static_cast<size_t>(rank)]) of_rank[group.ranks].push_back(group);
    for (auto& [ranks, list] : of_rank) {
      Members& members = by_ranks.try_emplace(ranks, Members{rank, list}).first->second;
      ++members.count;
      if (members.list != list) return DifferenceOf(plan, members.first, members.list, rank, list);
    }
  }
  const Members* partial = nullptr;  // Some of its ranks do not name it; that of the lowest rank that does.
  for (const auto& [ranks, members] : by_ranks) {
    if (members.count == members.list.front().size) continue;
    if (partial == nullptr || members.first < partial->first) partial = &members;
  }
  if (partial == nullptr) return std::nullopt;
  const Announcement& group = partial->list.front();
  const bool shards = group.relation == Relation::kShards;
  return Difference{absl::StrCat("rank ", partial->first, shards ? " shards" : " reduces gradients of",
                                 " parameter group '", NameOf(plan, group.number), "' over ", group.size,
                                 " ranks, but only ", partial->count, " of them do"),
                    shards ? "give all ranks the same mesh" : "return one replicate_group on each of them"};
}

// The parameters of a group that ranks with this relation must have alike, one in each line.
std::string DescribeParameters(const ShardingPlan& plan, int64_t number, Relation relation) {
  if (number >= std::ssize(plan.specs)) return "";
  const GroupSpec& spec = plan.specs[static_cast<size_t>(number)];
  const std::vector<ProcessGroup>& replicas = plan.buckets[static_cast<size_t>(spec.mesh)].groups;
  std::string lines;
  for (size_t i = 0; i < spec.parameters().size(); ++i) {
    const FlatParameter& parameter = spec.layout.parameters()[i];
    const bool is_replicated = replicas[static_cast<size_t>(parameter.replicate_bucket)].size() > 1;
    if (relation == Relation::kReplicates && !is_replicated) continue;
    absl::StrAppend(&lines, lines.empty() ? "" : "\n", "'", spec.parameters()[i]->name, "' ",
                    ToString(parameter.shape), " (", parameter.trainable ? "trained" : "frozen",
                    ", shard_dim ", parameter.shard_dim, ")");
  }
  return lines;
}

// The error of a difference, with the first parameter in which the two ranks differ, if there is one.
// Collective: all ranks of `bootstrap`, with the same difference.
absl::Status ErrorOf(Bootstrap& bootstrap, const ShardingPlan& plan, const Difference& difference,
                     absl::Duration timeout) {
  const bool is_told =
      difference.number && (bootstrap.rank() == difference.rank || bootstrap.rank() == difference.other_rank);
  const absl::StatusOr<std::string> own =
      is_told ? DescribeParameters(plan, *difference.number, difference.relation) : "";
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                        ExchangeBlobs(bootstrap, "parameters of a group", own, timeout));
  const auto lines_of = [&](int rank) -> std::vector<std::string> {
    return absl::StrSplit(texts[static_cast<size_t>(rank)], '\n', absl::SkipEmpty());
  };
  std::vector<std::string> mine = lines_of(difference.rank);
  std::vector<std::string> others = lines_of(difference.other_rank);
  std::string parameters;
  mine.resize(std::max(mine.size(), others.size()), "none");
  others.resize(mine.size(), "none");
  for (size_t i = 0; i < mine.size() && parameters.empty(); ++i) {
    if (mine[i] == others[i]) continue;
    parameters = absl::StrCat(", first at parameter ", i, ": rank ", difference.rank, " has ", mine[i],
                              ", rank ", difference.other_rank, " has ", others[i]);
  }
  return absl::InvalidArgumentError(absl::StrCat(difference.text, parameters, ": ", difference.remedy));
}

}  // namespace

absl::Status AgreeOnPlan(Bootstrap& bootstrap, const absl::StatusOr<ShardingPlan>& own,
                         absl::Duration timeout) {
  const int ranks = bootstrap.size();
  const auto summaries = [&]() -> absl::StatusOr<std::vector<Summary>> {
    WEFT_RETURN_IF_ERROR(own.status());
    return SummariesOf(*own, ranks);
  };
  // The blobs of other nodes are copies of this node's, which name this node's groups.
  if (HasMirroredNodes(bootstrap)) return AgreeOnStatus(bootstrap, own.status(), timeout);
  WEFT_ASSIGN_OR_RETURN(const auto all_summaries,
                        ExchangeLists(bootstrap, "parameter groups", summaries(), timeout));
  if (AreAlike(all_summaries)) return absl::OkStatus();
  // All ranks find the same. Messages grow with the number of groups only if there is an error to explain.
  WEFT_RETURN_IF_ERROR(AgreeOnOptions(bootstrap, "options of sharding", OptionsOf(*own), timeout));
  const absl::StatusOr<Announcements> announcements = AnnouncementsOf(*own, ranks);
  WEFT_ASSIGN_OR_RETURN(const std::vector<Announcements> all,
                        ExchangeLists(bootstrap, "parameter groups", announcements, timeout));
  if (const std::optional<Difference> difference = FirstDifference(*own, all)) {
    return AgreeOnStatus(bootstrap, ErrorOf(bootstrap, *own, *difference, timeout), timeout);
  }
  WEFT_RETURN_IF_ERROR(AgreeOnOptions(bootstrap, "lanes of sharding", LanesOf(*own), timeout));
  return absl::InternalError("hashes of parameter groups differ, and the groups do not");
}

}  // namespace weft
