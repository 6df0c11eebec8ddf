#include "weft/train/diagnose.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "weft/core/status.h"

namespace weft {
namespace {

using Operation = FlightRecord::Operation;
using RecordOfRank = std::map<int, const FlightRecord*>;

// Identity of a lane. Lanes of one name may have different groups, or the same group.
struct LaneKey {
  uint64_t index;
  std::string name;
  std::vector<int> ranks;
  bool operator<(const LaneKey& other) const { return Key() < other.Key(); }
  bool operator==(const LaneKey& other) const { return Key() == other.Key(); }

 private:
  std::tuple<const uint64_t&, const std::string&, const std::vector<int>&> Key() const {
    return {index, name, ranks};
  }
};

struct Waiting {
  LaneKey lane;
  const Operation* operation;
  std::vector<int> waiting;  // Ranks that have submitted the operation.
  std::vector<int> late;     // Ranks that have not, by their records or those of others.
};

std::string Ranks(const std::vector<int>& ranks) {
  constexpr size_t kShown = 8;
  const size_t shown = std::min(ranks.size(), kShown);
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                      absl::StrJoin(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                      shown < ranks.size() ? absl::StrCat(" and ", ranks.size() - shown, " others") : "");
}

std::string Describe(const Operation& operation) {
  return absl::StrCat(operation.description,
                      operation.label.empty() ? "" : absl::StrCat(" '", operation.label, "'"));
}

const FlightRecord::Lane* FindLane(const FlightRecord& record, const LaneKey& key) {
  for (const FlightRecord::Lane& lane : record.lanes) {
    if (LaneKey{lane.index, lane.name, lane.ranks} == key) return &lane;
  }
  return nullptr;
}

const Operation* FindOperation(const FlightRecord& record, const Operation& like) {
  for (const Operation& operation : record.operations) {
    if (operation.lane_index == like.lane_index && operation.sequence == like.sequence &&
        operation.generation == like.generation) {
      return &operation;
    }
  }
  return nullptr;
}

// The lanes of all ranks, each once.
std::set<LaneKey> LanesOf(const RecordOfRank& records) {
  std::set<LaneKey> lanes;
  for (const auto& [rank, record] : records) {
    for (const FlightRecord::Lane& lane : record->lanes) lanes.insert({lane.index, lane.name, lane.ranks});
  }
  return lanes;
}

// True if the operation may still end. A reset has ended those of an earlier generation.
bool IsUnfinished(const FlightRecord& record, const Operation& operation) {
  return !operation.ended && operation.generation == record.generation;
}

// The unfinished operations of a rank on a lane, oldest first.
std::vector<const Operation*> UnfinishedOn(const FlightRecord& record, const LaneKey& lane) {
  std::vector<const Operation*> unfinished;
  for (const Operation& operation : record.operations) {
    if (operation.lane_index == lane.index && IsUnfinished(record, operation))
      unfinished.push_back(&operation);
  }
  return unfinished;
}

// The first operation of a lane that two ranks describe differently.
std::optional<std::string> FindDisagreement(const RecordOfRank& records, const LaneKey& lane) {
  for (const int rank : lane.ranks) {
    const auto record = records.find(rank);
    if (record == records.end()) continue;
    for (const Operation* operation : UnfinishedOn(*record->second, lane)) {
      for (const int other : lane.ranks) {
        const auto peer = records.find(other);
        if (other <= rank || peer == records.end()) continue;
        const Operation* theirs = FindOperation(*peer->second, *operation);
        if (theirs == nullptr) continue;
        if (theirs->description == operation->description && theirs->counts_hash == operation->counts_hash)
          continue;
        const bool same_text = theirs->description == operation->description;
        return absl::StrCat("ranks ", rank, " and ", other, " disagree on lane ", lane.name, ": rank ", rank,
                            " submitted ", Describe(*operation), ", rank ", other, " submitted ",
                            Describe(*theirs), same_text ? ", with other counts per rank" : "");
      }
    }
  }
  return std::nullopt;
}

// Ranks without a record of which the other records say that they are late. A failure names the ranks that
// gave no answer or have not submitted an operation. A wait only names the next rank, which may wait itself.
std::set<int> NamedWithoutRecord(const RecordOfRank& records) {
  std::set<int> by_failures;
  std::set<int> by_waits;
  for (const auto& [rank, record] : records) {
    by_failures.insert(record->silent.begin(), record->silent.end());
    by_failures.insert(record->late.begin(), record->late.end());
    by_waits.insert(record->waits_for.begin(), record->waits_for.end());
    for (const Operation& operation : record->operations) {
      if (!IsUnfinished(*record, operation)) continue;
      by_waits.insert(operation.waits_for.begin(), operation.waits_for.end());
    }
  }
  for (std::set<int>* ranks : {&by_failures, &by_waits})
    std::erase_if(*ranks, [&](int rank) { return records.contains(rank); });
  return by_failures.empty() ? by_waits : by_failures;
}

// A rank of a later generation has reset its engine together with the others. One of an earlier generation
// has yet to do so.
bool HasSubmitted(const FlightRecord& record, const LaneKey& key, const Operation& operation) {
  if (record.generation != operation.generation) return record.generation > operation.generation;
  const FlightRecord::Lane* lane = FindLane(record, key);
  return lane != nullptr && lane->submitted >= operation.sequence;
}

// The oldest operation of a lane that some rank has submitted and another has not. A rank without a record is
// late only if it is `named`.
std::optional<Waiting> FindLate(const RecordOfRank& records, const std::set<int>& named,
                                const LaneKey& lane) {
  std::optional<Waiting> oldest;
  for (const int rank : lane.ranks) {
    const auto record = records.find(rank);
    if (record == records.end()) continue;
    for (const Operation* operation : UnfinishedOn(*record->second, lane)) {
      if (oldest && oldest->operation->sequence <= operation->sequence) break;
      Waiting found{lane, operation, {}, {}};
      for (const int member : lane.ranks) {
        const auto peer = records.find(member);
        if (peer == records.end()) {
          if (named.contains(member)) found.late.push_back(member);
          continue;
        }
        const bool submitted = HasSubmitted(*peer->second, lane, *operation);
        (submitted ? found.waiting : found.late).push_back(member);
      }
      if (found.late.empty()) continue;
      oldest = std::move(found);
      break;
    }
  }
  return oldest;
}

// A rank may be late because it waits for another one. The cause is therefore a wait for a late rank that
// does not wait itself; among several, the one submitted first. Its `late` then keeps only such ranks.
std::optional<Waiting> FindCause(std::vector<Waiting> waits) {
  std::set<int> waiting;
  for (const Waiting& wait : waits) waiting.insert(wait.waiting.begin(), wait.waiting.end());
  const auto waits_for_nobody = [&](int rank) { return !waiting.contains(rank); };
  std::optional<Waiting> cause;
  bool cause_is_free = false;
  for (Waiting& wait : waits) {
    const bool is_free = std::any_of(wait.late.begin(), wait.late.end(), waits_for_nobody);
    const bool is_first = !cause || wait.operation->submitted_ns < cause->operation->submitted_ns;
    if (cause && (is_free != cause_is_free ? cause_is_free : !is_first)) continue;
    cause = std::move(wait);
    cause_is_free = is_free;
  }
  if (cause_is_free) std::erase_if(cause->late, [&](int rank) { return !waits_for_nobody(rank); });
  return cause;
}

std::vector<int> MissingRecords(const RecordOfRank& records) {
  std::vector<int> missing;
  for (int rank = 0; rank < records.begin()->second->ranks; ++rank) {
    if (!records.contains(rank)) missing.push_back(rank);
  }
  return missing;
}

// Each host writes the records of its own ranks.
std::string DescribeMissing(const std::vector<int>& missing) {
  return absl::StrCat("there is no record of ", Ranks(missing), ": ",
                      missing.size() == 1 ? "it was" : "they were",
                      " killed or stopped, or wrote it on another host; copy the dump folders of all hosts "
                      "together, or put --dump-folder on a file system that all hosts share");
}

// The phases of the late ranks, as far as their records tell, and the ranks without a record.
std::string DescribePhases(const RecordOfRank& records, const std::vector<int>& late) {
  std::vector<std::string> texts;
  for (const int rank : late) {
    const auto record = records.find(rank);
    if (record == records.end() || texts.size() == 3) continue;
    const std::string& phase = record->second->phase;
    texts.push_back(absl::StrCat("rank ", rank, " is in ", phase.empty() ? "an unnamed phase" : phase));
  }
  const std::vector<int> missing = MissingRecords(records);
  if (!missing.empty()) texts.push_back(DescribeMissing(missing));
  return absl::StrJoin(texts, "; ");
}

// True if the failure happened on this rank. A failure that a rank learns from another one begins with
// "rank N: ".
bool HasOwnFailure(const FlightRecord& record) {
  return !record.failure.empty() && !absl::StartsWith(record.failure, "rank ");
}

enum class RanksOf : uint8_t { kOwnFailures, kAll };

// The oldest wait in the records of ranks with a failure of their own, or of all ranks. A late rank may have
// submitted its operation before it wrote its record, for example after it was stopped and continued. The
// records of its peers still name it.
std::optional<std::string> OldestWait(const RecordOfRank& records, RanksOf ranks) {
  const FlightRecord* waiting = nullptr;
  const Operation* oldest = nullptr;
  for (const auto& [rank, record] : records) {
    if (ranks == RanksOf::kOwnFailures && !HasOwnFailure(*record)) continue;
    for (const Operation& operation : record->operations) {
      if (!IsUnfinished(*record, operation) || operation.waits_for.empty()) continue;
      if (oldest != nullptr && operation.submitted_ns >= oldest->submitted_ns) continue;
      oldest = &operation;
      waiting = record;
    }
  }
  if (oldest == nullptr) return std::nullopt;
  return absl::StrCat("a rank was late: on rank ", waiting->rank, ", ", Describe(*oldest), " on lane ",
                      oldest->lane, " ", oldest->waiting_for, "; by now all ranks have submitted it");
}

// The wait that failed. The operation that failed may have ended before its rank wrote its record.
std::optional<std::string> FailedWait(const RecordOfRank& records) {
  for (const auto& [rank, record] : records) {
    if (!HasOwnFailure(*record) || record->waits_for.empty()) continue;
    return absl::StrCat("a rank was late: on rank ", rank, ", ", record->failure,
                        "; by now all ranks have submitted it");
  }
  return std::nullopt;
}

absl::StatusOr<RecordOfRank> Index(absl::Span<const FlightRecord> records) {
  if (records.empty()) return absl::DataLossError("there is no flight recorder to diagnose");
  RecordOfRank by_rank;
  for (const FlightRecord& record : records) {
    if (record.ranks != records[0].ranks) {
      return absl::DataLossError(absl::StrCat("the flight recorders are of different runs: one of ",
                                              records[0].ranks, " ranks and one of ", record.ranks,
                                              "; give those of one run"));
    }
    if (!by_rank.emplace(record.rank, &record).second) {
      return absl::DataLossError(
          absl::StrCat("there are two flight recorders of rank ", record.rank, "; give those of one run"));
    }
  }
  return by_rank;
}

// The failure of a rank on which it happened, or else of any.
std::string TheFailure(const RecordOfRank& records) {
  const FlightRecord* chosen = nullptr;
  for (const auto& [rank, record] : records) {
    if (!record->failure.empty() &&
        (chosen == nullptr || (HasOwnFailure(*record) && !HasOwnFailure(*chosen))))
      chosen = record;
  }
  return chosen == nullptr ? "" : absl::StrCat("; the failure was: ", chosen->failure);
}

// The cause where no rank is known to be late.
std::string WithoutLateRanks(const RecordOfRank& records) {
  // A rank without a failure of its own may be the late one, and wait for those that have ended.
  if (const std::optional<std::string> wait = OldestWait(records, RanksOf::kOwnFailures)) return *wait;
  if (const std::optional<std::string> wait = FailedWait(records)) return *wait;
  if (const std::optional<std::string> wait = OldestWait(records, RanksOf::kAll)) return *wait;
  return absl::StrCat("every operation was submitted by all its ranks", TheFailure(records));
}

}  // namespace

absl::StatusOr<std::string> Diagnose(absl::Span<const FlightRecord> records) {
  WEFT_ASSIGN_OR_RETURN(const RecordOfRank by_rank, Index(records));
  const std::set<LaneKey> lanes = LanesOf(by_rank);
  for (const LaneKey& lane : lanes) {
    if (const std::optional<std::string> disagreement = FindDisagreement(by_rank, lane)) return *disagreement;
  }
  const std::set<int> named = NamedWithoutRecord(by_rank);
  std::vector<Waiting> waits;
  for (const LaneKey& lane : lanes) {
    if (std::optional<Waiting> late = FindLate(by_rank, named, lane)) waits.push_back(*std::move(late));
  }
  if (const std::optional<Waiting> cause = FindCause(std::move(waits))) {
    return absl::StrCat(Ranks(cause->late),
                        cause->late.size() == 1 ? " is late: " : " are late: ", Describe(*cause->operation),
                        " on lane ", cause->lane.name, " was submitted by ", Ranks(cause->waiting),
                        " and not by ", Ranks(cause->late), " (", DescribePhases(by_rank, cause->late), ")");
  }
  const std::vector<int> missing = MissingRecords(by_rank);
  if (!missing.empty()) return absl::StrCat(DescribeMissing(missing), TheFailure(by_rank));
  return WithoutLateRanks(by_rank);
}

}  // namespace weft
