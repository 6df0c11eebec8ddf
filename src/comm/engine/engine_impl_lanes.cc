// Lanes: their names, indices and agreement on them.
#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include <absl/strings/str_cat.h>

#include "src/comm/engine/engine_impl.h"
#include "weft/core/hash.h"
#include "weft/core/status.h"
#include "weft/mesh/simulation.h"

namespace weft {
namespace {

std::string LaneName(const ProcessGroup& group, LanePurpose purpose) {
  return absl::StrCat(group.name, "/", ToAbsl(Name(purpose)));
}

// One rank's part of the agreement on a shared lane.
struct SharedLaneProposal {
  int existing;      // Index of the lane on this rank; that of LaneId{} if it has none yet.
  int lanes_of_all;  // Lanes that this rank has added with all others.
};
static_assert(std::is_trivially_copyable_v<SharedLaneProposal>);

}  // namespace

absl::Status CommEngine::Impl::CheckGroup(const ProcessGroup& group) const {
  const bool member = group.group_rank >= 0 && group.group_rank < group.size() &&
                      group.ranks[static_cast<size_t>(group.group_rank)] == bootstrap_.rank();
  if (!member) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", bootstrap_.rank(), " is not rank ",
                                                   group.group_rank, " of group ", group.name,
                                                   "; every rank adds the lane of its own group"));
  }
  std::vector<bool> is_named(static_cast<size_t>(bootstrap_.size()));
  for (const int rank : group.ranks) {
    if (rank < 0 || rank >= bootstrap_.size()) {
      return absl::InvalidArgumentError(absl::StrCat("group ", group.name, " has rank ", rank,
                                                     ", but the job has ranks 0 to ", bootstrap_.size() - 1,
                                                     "; use ranks of the job only"));
    }
    if (is_named[static_cast<size_t>(rank)]) {
      return absl::InvalidArgumentError(
          absl::StrCat("group ", group.name, " has rank ", rank, " more than once; name each rank once"));
    }
    is_named[static_cast<size_t>(rank)] = true;
  }
  return absl::OkStatus();
}

CommEngine::Impl::Lane* CommEngine::Impl::Find(LaneId lane) const {
  const MutexLock lock(lanes_mutex_);
  const bool in_range = lane.index >= 0 && static_cast<size_t>(lane.index) < lanes_.size();
  return in_range ? lanes_[static_cast<size_t>(lane.index)].get() : nullptr;
}

const ProcessGroup& CommEngine::Impl::group(LaneId lane) const {
  const Lane* found = Find(lane);
  WEFT_CHECK(found != nullptr, "the engine has no such lane");
  return found->placement.group();
}

absl::StatusOr<std::unique_ptr<CommEngine::Impl::Lane>> CommEngine::Impl::MakeLane(const ProcessGroup& group,
                                                                                   LanePurpose purpose) {
  WEFT_RETURN_IF_ERROR(CheckGroup(group));
  const uint64_t group_hash = Hash64(group.ranks.data(), group.ranks.size() * sizeof(int));
  return std::make_unique<Lane>(
      Lane{LaneName(group, purpose), purpose, MakePlacement(group, group_hash), group_hash});
}

GroupPlacement CommEngine::Impl::MakePlacement(const ProcessGroup& group, uint64_t group_hash) const {
  const auto make = [&] {
    return GroupPlacement::MakeTables(group.ranks, bootstrap_.node_map(), share_domains_.map);
  };
  Simulation* simulation = bootstrap_.runtime().simulation();
  if (simulation == nullptr) return {group, make()};
  // Engines of one simulation may have different domains.
  const uint64_t key = group_hash + static_cast<uint64_t>(share_domains_.kind);
  return {group,
          std::static_pointer_cast<const GroupPlacement::Tables>(simulation->SharedBetweenRanks(key, make))};
}

absl::StatusOr<LaneId> CommEngine::Impl::Install(int index, std::unique_ptr<Lane> lane) {
  WEFT_RETURN_IF_ERROR(shell_->WithCore(
      [&](EngineCore& core) { return core.AddLane(index, lane->name, lane->placement, lane->purpose); }));
  recorder_.RecordLane(index, lane->name, lane->placement.group().ranks);
  trace_.SetLaneName(index, lane->name);
  lane->index = index;
  const MutexLock lock(lanes_mutex_);
  if (static_cast<size_t>(index) >= lanes_.size()) lanes_.resize(static_cast<size_t>(index) + 1);
  lanes_[static_cast<size_t>(index)] = std::move(lane);
  return LaneId{index};
}

absl::StatusOr<LaneId> CommEngine::Impl::AddLane(const ProcessGroup& group, LanePurpose purpose) {
  const Turn::Hold turn(forming_);
  return AddLaneOfAll(group, purpose);
}

absl::StatusOr<LaneId> CommEngine::Impl::AddLaneOfAll(const ProcessGroup& group, LanePurpose purpose) {
  const absl::StatusOr<LaneId> lane = AddOwnLaneOfAll(group, purpose);
  // A rank that failed alone would leave its peers to wait for it in the first operation of the lane.
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap_, lane.status(), timeout_));
  return lane;
}

absl::StatusOr<LaneId> CommEngine::Impl::AddOwnLaneOfAll(const ProcessGroup& group, LanePurpose purpose) {
  const int number = lanes_of_all_;
  const int index = IndexOfLaneOfAll(number);
  if (index >= lane_limit_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("lane ", LaneName(group, purpose), " of ", RankList(group.ranks),
                     " is one too many: this engine has at most ", number,
                     " lanes that all ranks add; use one lane for several uses of a group, or GroupLane"));
  }
  // A lane that fails on this rank alone uses up its index: the other ranks have it.
  ++lanes_of_all_;
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Lane> lane, MakeLane(group, purpose));
  return Install(index, std::move(lane));
}

absl::StatusOr<LaneId> CommEngine::Impl::GroupLane(const ProcessGroup& group, LanePurpose purpose, int number,
                                                   const GroupExchange& exchange) {
  const Turn::Hold turn(forming_);
  const std::string name = LaneName(group, purpose);
  const LaneKey key{group.ranks, purpose, number};
  const auto found = group_lanes_.find(key);
  LaneProposal own;
  own.group_hash = Hash64(group.ranks.data(), group.ranks.size() * sizeof(int));
  own.purpose = purpose;
  own.number = number;
  own.existing = found == group_lanes_.end() ? -1 : found->second.index;
  own.limit = lane_limit_;
  own.is_free = FreeIndices();
  absl::StatusOr<std::unique_ptr<Lane>> lane = MakeLane(group, purpose);
  // Afterwards no member fails alone.
  own.status = lane.status();
  if (lane.ok()) {
    own.status = shell_->WithCore([&](EngineCore& core) { return core.ReserveLane((*lane)->placement); });
  }
  const absl::StatusOr<std::vector<std::string>> proposals = exchange(own.Serialize());
  if (!proposals.ok()) {
    return Annotate(proposals.status(),
                    absl::StrCat("lane ", name, " of ", RankList(group.ranks), ", agreement of its members"));
  }
  WEFT_ASSIGN_OR_RETURN(const LaneDecision decision, DecideLane(group, name, *proposals));
  if (!decision.is_new) return LaneId{decision.index};
  WEFT_ASSIGN_OR_RETURN(const LaneId id, Install(decision.index, *std::move(lane)));
  group_lanes_[key] = id;
  return id;
}

// The index of a lane is the same on all ranks, so they must decide alike whether to add one. Their own maps
// may differ: two partitions of the ranks can have some groups in common, whose ranks then have the lane, and
// not others. A lane is therefore reused only if all ranks have it at the same index. A rank that is late may
// add a lane after its peers have missed their deadline: a new lane is above those of all ranks.
absl::StatusOr<LaneId> CommEngine::Impl::SharedLane(const ProcessGroup& group, LanePurpose purpose,
                                                    int number) {
  const Turn::Hold turn(forming_);
  const LaneKey key{group.ranks, purpose, number};
  const auto found = shared_lanes_.find(key);
  const SharedLaneProposal own{found == shared_lanes_.end() ? LaneId{}.index : found->second.index,
                               lanes_of_all_};
  const std::string blob(reinterpret_cast<const char*>(&own), sizeof(own));
  const absl::Status valid = CheckGroup(group);
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> proposals,
                        ExchangeBlobs(bootstrap_, "index of a shared lane",
                                      valid.ok() ? absl::StatusOr<std::string>(blob) : valid, timeout_));
  bool same = true;
  for (size_t rank = 0; rank < proposals.size(); ++rank) {
    SharedLaneProposal proposal;
    if (proposals[rank].size() != sizeof(proposal)) {
      return absl::InternalError(absl::StrCat("rank ", rank, " has sent the index of a shared lane in ",
                                              proposals[rank].size(), " bytes, expected ", sizeof(proposal),
                                              kSameVersionRemedy));
    }
    std::memcpy(&proposal, proposals[rank].data(), sizeof(proposal));
    same = same && proposal.existing == own.existing;
    lanes_of_all_ = std::max(lanes_of_all_, proposal.lanes_of_all);
  }
  if (same && found != shared_lanes_.end()) return found->second;
  WEFT_ASSIGN_OR_RETURN(const LaneId lane, AddLaneOfAll(group, purpose));
  shared_lanes_[key] = lane;
  return lane;
}

std::vector<bool> CommEngine::Impl::FreeIndices() const {
  const MutexLock lock(lanes_mutex_);
  std::vector<bool> is_free;
  for (const std::unique_ptr<Lane>& lane : lanes_) is_free.push_back(lane == nullptr);
  return is_free;
}

}  // namespace weft
