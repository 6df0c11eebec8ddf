#include "src/comm/links/late_rank_messages.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include <absl/strings/str_cat.h>

#include "weft/core/status.h"
#include "weft/mesh/wire_link.h"

namespace weft {
namespace {

struct LateRanksMessage {
  int32_t lane = 0;
  int16_t late_count = 0;
  int16_t silent_count = 0;
  uint64_t sequence = 0;
  int32_t is_final = 0;
  std::array<int32_t, 2 * LateRankAnswer::kMaxRanks> ranks{};  // The late ones, then the silent ones.
};
static_assert(std::is_trivially_copyable_v<LateRanksMessage> &&
              sizeof(LateRanksMessage) < WireLink::kMaxControlMessageBytes);

}  // namespace

std::string EncodeLateRanks(const LateRankQuestion& question) {
  return EncodeLateRanks(LateRankAnswer{question, false, {}, {}});
}

std::string EncodeLateRanks(const LateRankAnswer& answer) {
  LateRanksMessage message;
  message.lane = answer.question.about.lane;
  message.sequence = answer.question.about.sequence;
  message.is_final = answer.is_final ? 1 : 0;
  message.late_count = static_cast<int16_t>(answer.late.size());
  message.silent_count = static_cast<int16_t>(answer.silent.size());
  std::copy(answer.silent.begin(), answer.silent.end(),
            std::copy(answer.late.begin(), answer.late.end(), message.ranks.begin()));
  return {reinterpret_cast<const char*>(&message), sizeof(message)};
}

absl::StatusOr<LateRankAnswer> ParseLateRanks(int peer, std::string_view bytes) {
  LateRanksMessage message;
  if (bytes.size() != sizeof(message)) {
    return absl::InternalError(absl::StrCat("a message about late ranks from rank ", peer, " has ",
                                            bytes.size(), " bytes, expected ", sizeof(message),
                                            kSameVersionRemedy));
  }
  std::memcpy(&message, bytes.data(), sizeof(message));
  const auto is_count = [](int count) {
    return count >= 0 && count <= static_cast<int>(LateRankAnswer::kMaxRanks);
  };
  if (!is_count(message.late_count) || !is_count(message.silent_count)) {
    return absl::InternalError(absl::StrCat("a message about late ranks from rank ", peer, " names ",
                                            message.late_count, " late and ", message.silent_count,
                                            " silent ranks, at most ", LateRankAnswer::kMaxRanks, " of each",
                                            kSameVersionRemedy));
  }
  const auto late_end = message.ranks.begin() + message.late_count;
  return LateRankAnswer{{peer, {message.lane, message.sequence}},
                        message.is_final != 0,
                        {message.ranks.begin(), late_end},
                        {late_end, late_end + message.silent_count}};
}

}  // namespace weft
