#include "src/comm/engine/lane_agreement.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include <absl/strings/str_cat.h>

#include "weft/core/status.h"

namespace weft {
namespace {

// A bit for each index and the text of the status follow.
struct Header {
  static constexpr uint64_t kMagic = 0x656e616c74666577;  // "weftlane".
  uint64_t magic = kMagic;
  uint64_t group_hash = 0;
  int32_t purpose = 0;
  int32_t number = 0;
  int32_t existing = 0;
  int32_t limit = 0;
  int32_t indices = 0;
  int32_t code = 0;
};
static_assert(std::is_trivially_copyable_v<Header>);

size_t BitmapBytes(int32_t indices) { return (static_cast<size_t>(indices) + 7) / 8; }

std::string DescribeLane(const LaneProposal& proposal) {
  return absl::StrCat("a lane for ", ToAbsl(Name(proposal.purpose)), " with number ", proposal.number,
                      " of the group with hash ", absl::Hex(proposal.group_hash));
}

bool IsSameLane(const LaneProposal& a, const LaneProposal& b) {
  return a.group_hash == b.group_hash && a.purpose == b.purpose && a.number == b.number;
}

absl::StatusOr<std::vector<LaneProposal>> ParseAll(const ProcessGroup& group, std::string_view name,
                                                   absl::Span<const std::string> proposals) {
  if (static_cast<int>(proposals.size()) != group.size()) {
    return absl::InternalError(absl::StrCat("lane ", ToAbsl(name), ": the exchange returned ",
                                            proposals.size(), " blobs for ", group.size(),
                                            " members; it must return one for each group rank"));
  }
  std::vector<LaneProposal> parsed;
  for (size_t member = 0; member < proposals.size(); ++member) {
    absl::StatusOr<LaneProposal> proposal = LaneProposal::Parse(proposals[member]);
    if (!proposal.ok()) {
      return Annotate(proposal.status(),
                      absl::StrCat("lane ", ToAbsl(name), ": proposal of rank ", group.ranks[member]));
    }
    parsed.push_back(*std::move(proposal));
  }
  return parsed;
}

// The lowest index that is free on all members, or -1.
int LowestFree(const std::vector<LaneProposal>& proposals) {
  int limit = proposals[0].limit;
  for (const LaneProposal& proposal : proposals) limit = std::min(limit, proposal.limit);
  const auto is_free = [](const LaneProposal& proposal, int index) {
    return static_cast<size_t>(index) >= proposal.is_free.size() ||
           proposal.is_free[static_cast<size_t>(index)];
  };
  for (int index = 0; index < limit; ++index) {
    if (IsOfLaneOfAll(index)) continue;
    if (std::all_of(proposals.begin(), proposals.end(),
                    [&](const LaneProposal& proposal) { return is_free(proposal, index); })) {
      return index;
    }
  }
  return -1;
}

}  // namespace

std::string LaneProposal::Serialize() const {
  Header header;
  header.group_hash = group_hash;
  header.purpose = static_cast<int32_t>(purpose);
  header.number = number;
  header.existing = existing;
  header.limit = limit;
  header.indices = static_cast<int32_t>(is_free.size());
  header.code = static_cast<int32_t>(status.code());
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  std::string bitmap(BitmapBytes(header.indices), '\0');
  for (size_t i = 0; i < is_free.size(); ++i) {
    if (is_free[i]) bitmap[i / 8] = static_cast<char>(bitmap[i / 8] | (1 << (i % 8)));
  }
  return absl::StrCat(bytes, bitmap, status.message());
}

absl::StatusOr<LaneProposal> LaneProposal::Parse(std::string_view bytes) {
  const auto invalid = [&] {
    return absl::InternalError(absl::StrCat("the exchange returned ", bytes.size(),
                                            " bytes that no member of a lane has sent; it must return the "
                                            "blob of each member, of this call"));
  };
  Header header;
  if (bytes.size() < sizeof(header)) return invalid();
  std::memcpy(&header, bytes.data(), sizeof(header));
  const std::string_view rest = bytes.substr(sizeof(header));
  if (header.magic != Header::kMagic || header.indices < 0 || header.limit < 0 ||
      rest.size() < BitmapBytes(header.indices)) {
    return invalid();
  }
  LaneProposal proposal;
  proposal.group_hash = header.group_hash;
  proposal.purpose = static_cast<LanePurpose>(header.purpose);
  proposal.number = header.number;
  proposal.existing = header.existing;
  proposal.limit = header.limit;
  for (size_t i = 0; i < static_cast<size_t>(header.indices); ++i)
    proposal.is_free.push_back((rest[i / 8] >> (i % 8) & 1) != 0);
  proposal.status = absl::Status(static_cast<absl::StatusCode>(header.code),
                                 ToAbsl(rest.substr(BitmapBytes(header.indices))));
  return proposal;
}

absl::StatusOr<LaneDecision> DecideLane(const ProcessGroup& group, std::string_view name,
                                        absl::Span<const std::string> proposals) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<LaneProposal> parsed, ParseAll(group, name, proposals));
  for (size_t member = 0; member < parsed.size(); ++member) {
    if (!IsSameLane(parsed[member], parsed[0])) {
      return absl::FailedPreconditionError(absl::StrCat(
          "lane ", ToAbsl(name), " of ", RankList(group.ranks), ": rank ", group.ranks[0], " forms ",
          DescribeLane(parsed[0]), ", rank ", group.ranks[member], " forms ", DescribeLane(parsed[member]),
          "; all members must form the lanes that they share in one order, with an exchange for each call"));
    }
    if (!parsed[member].status.ok())
      return Annotate(parsed[member].status, absl::StrCat("rank ", group.ranks[member]));
  }
  const bool all_have_it = std::all_of(parsed.begin(), parsed.end(), [&](const LaneProposal& proposal) {
    return proposal.existing >= 0 && proposal.existing == parsed[0].existing;
  });
  if (all_have_it) return LaneDecision{parsed[0].existing, /*is_new=*/false};
  const int index = LowestFree(parsed);
  if (index >= 0) return LaneDecision{index, /*is_new=*/true};
  return absl::ResourceExhaustedError(
      absl::StrCat("lane ", ToAbsl(name), ": no lane index is free on all of ", RankList(group.ranks),
                   ", which have up to ", parsed[0].limit / kLanesPerLaneOfAll * (kLanesPerLaneOfAll - 1),
                   " lanes of members only; use one lane for several uses of a group"));
}

}  // namespace weft
