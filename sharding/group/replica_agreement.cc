#include "sharding/group/replica_agreement.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>

#include "sharding/group/exchange_lists.h"
#include "weft/core/hash.h"
#include "weft/core/status.h"
#include "weft/mesh/simulation.h"

namespace weft {
namespace {

// Values that the members of a replicate group must have alike.
struct Values {
  uint64_t replicas = 0;  // Hash of their ranks.
  int64_t number = 0;     // That of the parameter, counted over all groups; 0 for all of them together.
  uint64_t hash = 0;
};
using ValuesOfRank = std::vector<Values>;

// The elements that this rank holds of each parameter with replicas.
ValuesOfRank HashParameters(absl::Span<const std::unique_ptr<ParamGroup>> groups) {
  ValuesOfRank values;
  int64_t before = 0;  // Parameters of earlier groups.
  for (const auto& group : groups) {
    for (const MasterView& master : group->WholeShards()) {
      const auto index = static_cast<size_t>(master.piece.parameter);
      const std::vector<int>& replicas =
          group->lanes().replicate_group(group->layout().parameters()[index].replicate_bucket).ranks;
      if (replicas.size() < 2) continue;
      const auto bytes = static_cast<size_t>(BytesOf(master.elements(), group->dtypes().master));
      values.push_back({Hash64(replicas.data(), replicas.size() * sizeof(int)),
                        before + master.piece.parameter, Hash64(master.data, bytes)});
    }
    before += std::ssize(group->parameters());
  }
  return values;
}

ValuesOfRank Summarize(const ValuesOfRank& values) {
  std::map<uint64_t, Values> by_replicas;
  for (const Values& of_parameter : values) {
    Values& sum = by_replicas.try_emplace(of_parameter.replicas, Values{of_parameter.replicas}).first->second;
    sum.hash = Hash64(&of_parameter, sizeof(of_parameter), sum.hash);
  }
  ValuesOfRank summary;
  for (const auto& [replicas, sum] : by_replicas) summary.push_back(sum);
  return summary;
}

struct Difference {
  int64_t number;
  int first;
  int second;
};

// The first parameter of which two ranks have different values. Nothing if there is none.
std::optional<Difference> FindDifference(absl::Span<const ValuesOfRank> values) {
  std::map<std::pair<uint64_t, int64_t>, std::pair<int, uint64_t>> firsts;  // The lowest rank and its hash.
  std::optional<Difference> found;
  for (int rank = 0; rank < std::ssize(values); ++rank) {
    for (const Values& own : values[static_cast<size_t>(rank)]) {
      const auto [first, is_new] = firsts.try_emplace({own.replicas, own.number}, rank, own.hash);
      if (is_new || first->second.second == own.hash) continue;
      if (!found || own.number < found->number) found = Difference{own.number, first->second.first, rank};
    }
  }
  return found;
}

const std::string& NameOf(absl::Span<const std::unique_ptr<ParamGroup>> groups, int64_t number) {
  for (const auto& group : groups) {
    if (number < std::ssize(group->parameters()))
      return group->parameters()[static_cast<size_t>(number)]->name;
    number -= std::ssize(group->parameters());
  }
  WEFT_CHECK(false, "a number of no parameter");
}

}  // namespace

absl::Status AgreeOnReplicas(Bootstrap& bootstrap, absl::Span<const std::unique_ptr<ParamGroup>> groups,
                             const absl::Status& loaded, absl::Duration timeout) {
  // The blobs of other nodes are copies of this node's.
  if (HasMirroredNodes(bootstrap)) return AgreeOnStatus(bootstrap, loaded, timeout);
  const ValuesOfRank own = loaded.ok() ? HashParameters(groups) : ValuesOfRank();
  const auto exchange = [&](const absl::StatusOr<ValuesOfRank>& values) {
    return ExchangeLists(bootstrap, "values of replicas", values, timeout);
  };
  WEFT_ASSIGN_OR_RETURN(const auto summaries,
                        exchange(loaded.ok() ? absl::StatusOr<ValuesOfRank>(Summarize(own)) : loaded));
  if (!FindDifference(summaries)) return absl::OkStatus();
  // All ranks find the same. Messages grow with the number of parameters only if there is an error to
  // explain.
  WEFT_ASSIGN_OR_RETURN(const auto of_parameters, exchange(own));
  const std::optional<Difference> difference = FindDifference(of_parameters);
  WEFT_CHECK(difference.has_value(), "hashes of values differ, and the values do not");
  return AgreeOnStatus(bootstrap,
                       absl::InvalidArgumentError(absl::StrCat(
                           "rank ", difference->second, " has other initial values of parameter '",
                           NameOf(groups, difference->number), "' than rank ", difference->first,
                           ", of which it is a replica: give all ranks the same seed, or load the same "
                           "weights on all of them")),
                       timeout);
}

}  // namespace weft
