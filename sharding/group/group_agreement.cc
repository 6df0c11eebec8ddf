#include "sharding/group/group_agreement.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <absl/algorithm/container.h>
#include <absl/strings/str_cat.h>

#include "weft/core/hash.h"
#include "weft/core/status.h"

namespace weft {
namespace {

// Hashes of what some ranks must have alike of a group, and their names in messages.
struct Fingerprint {
  uint64_t parameters = 0, trainable = 0, dtypes = 0, dims = 0, replicas = 0, parts = 0;

  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};
constexpr std::pair<uint64_t Fingerprint::*, absl::string_view> kAspects[] = {
    {&Fingerprint::parameters, "its name, its parameters, their shapes or their order"},
    {&Fingerprint::trainable, "requires_grad or trained_later"},
    {&Fingerprint::dtypes, "dtypes"},
    {&Fingerprint::dims, "shard_dim"},
    {&Fingerprint::replicas, "replicate_group, or their place in the shard group"},
    {&Fingerprint::parts, "layout, reshard_after_forward_size or mesh_of"}};

enum class Relation : int32_t { kShards, kReplicates };

// A parameter group as a rank describes it to others: the whole of it to a shard group, or its parameters of
// one bucket to a replicate group. There is none for groups of one rank.
struct Announcement {
  uint64_t ranks;  // Hash of the relation and of the ranks of the shard or replicate group.
  Relation relation;
  int32_t size;  // Ranks of that group.
  int64_t number;
  Fingerprint fingerprint;

  friend bool operator==(const Announcement&, const Announcement&) = default;
};
static_assert(sizeof(Announcement) == 24 + sizeof(Fingerprint), "messages have no padding");
using Announcements = std::vector<Announcement>;

template <typename... Values>
void Add(uint64_t& hash, Values... values) {
  ((hash = HashCombine(hash, static_cast<uint64_t>(values))), ...);
}

// `bucket`: covers the parameters of this one; unset: of all.
Fingerprint FingerprintOf(const GroupSpec& spec, std::optional<int> bucket) {
  Fingerprint of;
  of.parameters = Hash64(spec.name());
  for (size_t i = 0; i < spec.parameters().size(); ++i) {
    const FlatParameter& parameter = spec.layout.parameters()[i];
    if (bucket.value_or(parameter.replicate_bucket) != parameter.replicate_bucket) continue;
    Add(of.parameters, Hash64(spec.parameters()[i]->name), parameter.shape.size());
    for (const int64_t size : parameter.shape) Add(of.parameters, size);
    Add(of.trainable, parameter.trainable);
    const auto dims = static_cast<int>(parameter.shape.size());
    Add(of.dims, parameter.shard_dim < 0 ? parameter.shard_dim + dims : parameter.shard_dim);
    if (!bucket) Add(of.replicas, parameter.replicate_bucket);
  }
  const ParameterDTypes& dtypes = spec.dtypes;
  Add(of.dtypes, dtypes.param, dtypes.reduce, dtypes.gradient_dtype(), dtypes.master);
  Add(of.parts, spec.layout.kind(), spec.regather_size, spec.mesh);
  return of;
}

void Announce(Announcements& list, const ProcessGroup& ranks, Relation relation, int64_t number,
              Fingerprint fingerprint) {
  if (ranks.size() == 1) return;
  const uint64_t hash =
      Hash64(ranks.ranks.data(), ranks.ranks.size() * sizeof(int), static_cast<uint64_t>(relation));
  list.push_back({hash, relation, ranks.size(), number, fingerprint});
}

Announcements AnnouncementsOf(const ShardingPlan& plan) {
  Announcements list;
  for (size_t i = 0; i < plan.specs.size(); ++i) {
    const GroupSpec& spec = plan.specs[i];
    const auto number = static_cast<int64_t>(i);
    const ProcessGroup& shard = plan.meshes.meshes[static_cast<size_t>(spec.mesh)].shard;
    Announce(list, shard, Relation::kShards, number, FingerprintOf(spec, std::nullopt));
    const std::vector<ProcessGroup>& replicate = plan.buckets[static_cast<size_t>(spec.mesh)].groups;
    for (int bucket = 0; bucket < std::ssize(replicate); ++bucket) {
      const auto in_bucket = [&](const FlatParameter& p) { return p.replicate_bucket == bucket; };
      if (std::ranges::none_of(spec.layout.parameters(), in_bucket)) continue;
      Fingerprint fingerprint = FingerprintOf(spec, bucket);
      Add(fingerprint.replicas, shard.size(), shard.group_rank);
      Announce(list, replicate[static_cast<size_t>(bucket)], Relation::kReplicates, number, fingerprint);
    }
  }
  return list;
}

// All announcements of a shard or replicate group.
struct Summary {
  uint64_t ranks;  // That of the announcements.
  int64_t size;
  uint64_t hash;

  friend bool operator==(const Summary&, const Summary&) = default;
};
static_assert(sizeof(Summary) == 24, "messages have no padding");

std::vector<Summary> SummariesOf(const Announcements& list) {
  std::map<uint64_t, Summary> by_ranks;
  for (const Announcement& group : list) {
    Summary& summary = by_ranks.try_emplace(group.ranks, Summary{group.ranks, group.size, 0}).first->second;
    Add(summary.hash, Hash64(&group, sizeof(group)));
  }
  std::vector<Summary> summaries;
  for (const auto& [ranks, summary] : by_ranks) summaries.push_back(summary);
  return summaries;
}

// Exchanges lists of all ranks. By rank. Entries are trivially copyable, and have no padding.
template <typename Entry>
absl::StatusOr<std::vector<std::vector<Entry>>> ExchangeLists(Bootstrap& bootstrap,
                                                              const absl::StatusOr<std::vector<Entry>>& own,
                                                              absl::Duration timeout) {
  const auto blob = [&]() -> absl::StatusOr<std::string> {
    WEFT_RETURN_IF_ERROR(own.status());
    return std::string(reinterpret_cast<const char*>(own->data()), own->size() * sizeof(Entry));
  };
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> blobs,
                        ExchangeBlobs(bootstrap, "parameter groups", blob(), timeout));
  std::vector<std::vector<Entry>> lists;
  for (const std::string& message : blobs) {
    WEFT_CHECK(message.size() % sizeof(Entry) == 0, "a rank sent no list of parameter groups");
    std::vector<Entry>& list = lists.emplace_back(message.size() / sizeof(Entry));
    if (!list.empty()) std::memcpy(list.data(), message.data(), message.size());
  }
  return lists;
}

// True if all ranks of each shard or replicate group have the same summary of it.
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

// The error that two lists of one shard or replicate group differ.
absl::Status Difference(const ShardingPlan& plan, int rank, const Announcements& list, int other_rank,
                        const Announcements& others) {
  const auto [mine, theirs] = std::ranges::mismatch(list, others);
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
  const bool shards = list.front().relation == Relation::kShards;
  return absl::InvalidArgumentError(
      absl::StrCat("parameter group '", NameOf(plan, number), "': ranks ", rank, " and ", other_rank, " ",
                   shards ? "hold shards of it" : "reduce its gradients together", ", but differ in ", aspect,
                   ": give both ranks the same"));
}

// The first difference between the lists of ranks that are not alike.
absl::Status FirstDifference(const ShardingPlan& plan, const std::vector<Announcements>& lists) {
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
      if (members.list != list) return Difference(plan, members.first, members.list, rank, list);
    }
  }
  const Members* partial = nullptr;  // Some of its ranks do not name it; that of the lowest rank that does.
  for (const auto& [ranks, members] : by_ranks) {
    if (members.count == members.list.front().size) continue;
    if (partial == nullptr || members.first < partial->first) partial = &members;
  }
  WEFT_CHECK(partial != nullptr, "summaries of parameter groups differ, and the groups do not");
  const Announcement& group = partial->list.front();
  const bool shards = group.relation == Relation::kShards;
  return absl::InvalidArgumentError(absl::StrCat(
      "rank ", partial->first, shards ? " shards" : " reduces gradients of", " parameter group '",
      NameOf(plan, group.number), "' over ", group.size, " ranks, but only ", partial->count, " of them do: ",
      shards ? "give all ranks the same mesh" : "return one replicate_group on each of them"));
}

}  // namespace

absl::Status AgreeOnPlan(Bootstrap& bootstrap, const absl::StatusOr<ShardingPlan>& own,
                         absl::Duration timeout) {
  const absl::StatusOr<Announcements> announcements =
      own.ok() ? absl::StatusOr<Announcements>(AnnouncementsOf(*own)) : own.status();
  const absl::StatusOr<std::vector<Summary>> summaries =
      own.ok() ? absl::StatusOr<std::vector<Summary>>(SummariesOf(*announcements)) : own.status();
  WEFT_ASSIGN_OR_RETURN(const auto all_summaries, ExchangeLists(bootstrap, summaries, timeout));
  if (AreAlike(all_summaries)) return absl::OkStatus();
  // All ranks find the same. Messages grow with the number of groups only if there is an error to explain.
  WEFT_ASSIGN_OR_RETURN(const std::vector<Announcements> all,
                        ExchangeLists(bootstrap, announcements, timeout));
  return AgreeOnStatus(bootstrap, FirstDifference(*own, all), timeout);  // The same on all ranks.
}

}  // namespace weft
