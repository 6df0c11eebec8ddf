// Questions of a rank to those for which it waits about late ranks, and their answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <absl/status/statusor.h>

namespace weft {

// An operation, by the index of its lane. Ranks of a lane number its operations alike.
struct OperationNumber {
  int lane = 0;
  uint64_t sequence = 0;
  bool operator<(const OperationNumber& other) const {
    return std::tie(lane, sequence) < std::tie(other.lane, other.sequence);
  }
};

struct LateRankQuestion {
  int peer;
  OperationNumber about;
  bool operator<(const LateRankQuestion& other) const {
    return std::tie(peer, about) < std::tie(other.peer, other.about);
  }
};

struct LateRankAnswer {
  // Ranks of one list that an answer can have.
  static constexpr size_t kMaxRanks = 24;

  LateRankQuestion question;  // With the rank that answers as `peer`.
  bool is_final = true;       // False: the rank itself awaits answers, and sends another one.
  std::vector<int> late;      // Ranks that have not submitted what others wait for.
  std::vector<int> silent;    // Ranks that have not answered.
};

// The bytes of a question or answer. At most WireLink::kMaxControlMessageBytes - 1.
std::string EncodeLateRanks(const LateRankQuestion& question);
std::string EncodeLateRanks(const LateRankAnswer& answer);
// The answer that `peer` has sent, or its question: that of an answer without ranks.
// Errors: kInternal (the bytes are malformed).
absl::StatusOr<LateRankAnswer> ParseLateRanks(int peer, std::string_view bytes);

}  // namespace weft
