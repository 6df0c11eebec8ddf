// Inquiries after the ranks that are late or silent, when a wait has missed the engine's timeout.
//
// Note [Late ranks]
// Problem: in a tree of messages, a rank waits for a neighbor that itself waits for another one. Its error
//   should name the rank that is really late, or dead, without a question to each rank.
// Rule: a rank asks those for which its operation waits. An asked rank answers at once. If it waits itself,
//   in that operation or, before it submits it, in another one, it asks further, and passes on the ranks that
//   the answers name. If it has not submitted the operation and waits for nobody who is late, the answer
//   names it as late. A rank that has not answered after a second counts as silent.
// Why it suffices: a chain of waits ends at a rank that is late, silent, or moves data. Questions go along
//   edges on which the operation has messages anyway, so in a tree each rank sends a logarithmic number of
//   them, and a few answers to each.
//
// Deterministic: time and messages are parameters. Thread safety: none; called under the core's lock.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <absl/functional/function_ref.h>

#include "src/comm/links/late_rank_messages.h"

namespace weft {

class LateRanks {
 public:
  // Longest time from a question to an answer: a parked progress thread sleeps for a part of it.
  static constexpr int64_t kAnswerNs = 1'000'000'000;

  // The state of an operation on a rank that is asked about it.
  struct Awaited {
    bool is_submitted = true;
    OperationNumber waits_in;  // The operation for which the ranks are awaited: that one, or another one.
    std::vector<int> ranks;    // Other than this rank.
  };
  using Lookup = absl::FunctionRef<Awaited(const OperationNumber&)>;
  struct Messages {
    std::vector<LateRankQuestion> questions;
    std::vector<std::pair<int, LateRankAnswer>> answers;  // With the rank that gets the answer.
  };

  explicit LateRanks(int rank) : rank_(rank) {}

  // Starts an inquiry of this rank's own.
  void Inquire(const Awaited& awaited, int64_t now_ns, Messages& messages);
  void OnQuestion(const LateRankQuestion& from, Lookup lookup, int64_t now_ns, Messages& messages);
  void OnAnswer(const LateRankAnswer& answer, Messages& messages);
  // Ranks that have not answered in time count as silent.
  void Poll(int64_t now_ns, Messages& messages);

  // True if no rank that this rank has asked in the inquiry owes it an answer.
  bool is_final(const OperationNumber& waits_in) const;
  // "no heartbeat from rank(s) 3; rank(s) 5 have not submitted what others wait for; ". Empty: there are
  // none. `also_silent`: ranks of this node without a heartbeat.
  std::string Describe(const OperationNumber& waits_in, std::set<int> also_silent) const;

 private:
  struct Peer {
    int64_t asked_ns;
    bool has_answered = false;
    bool is_final = false;
  };
  struct Inquiry {
    int64_t begun_ns = 0;
    std::map<int, Peer> peers;
    std::map<LateRankQuestion, bool> askers;  // True: this rank has not submitted what the rank asks about.
    std::set<int> late;
    std::set<int> silent;

    bool is_final() const;
  };
  Inquiry& Begin(const Awaited& awaited, int64_t now_ns, Messages& messages);
  // Answers all askers with what is known.
  void AnswerAll(const Inquiry& inquiry, Messages& messages) const;
  LateRankAnswer AnswerTo(const LateRankQuestion& asker, const Inquiry& inquiry) const;

  const int rank_;
  std::map<OperationNumber, Inquiry> inquiries_;
};

}  // namespace weft
