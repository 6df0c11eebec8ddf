// Point-to-point messages of a rank: announces sends, matches receives, and steps the transfers. See
// Note [Messages].
//
// Deterministic, as EngineCore. Its owner sets the states of the records.
//
// Thread safety: all members are called under the core's lock.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "src/comm/links/control_mail.h"
#include "src/comm/links/credit_scheduler.h"
#include "src/comm/messages/message_matcher.h"
#include "src/comm/messages/transfers.h"

namespace weft {

// Receiver of the events of messages.
class MessageEvents {
 public:
  virtual void OnMessageStarted(OperationRecord& record) = 0;
  // The data is valid, or the buffer is free. No rank accesses it any more.
  virtual void OnMessageFinished(OperationRecord& record) = 0;

 protected:
  ~MessageEvents() = default;
};

class MessageBoard final : private SignalSender {
 public:
  struct Environment {
    int rank;
    const NodeMap& nodes;
    NodeLink& node;
    CreditScheduler& wire;
    ControlMail& mail;
    TaskQueue& tasks;
    BufferPool& scratch;
    EngineCounters& counters;
    const EngineOptions& options;
    CreditRules rules;
  };
  MessageBoard(const Environment& environment, MessageEvents& events);

  // Takes a send or a receive; the next Poll starts it.
  void Submit(std::shared_ptr<OperationRecord> record);
  // Advances all messages. True if anything advanced.
  // Errors: kFailedPrecondition (a send and a receive that match have different sizes, dtypes or
  //   identities), kAborted (a rank that a message needs has destroyed its engine).
  absl::StatusOr<bool> Poll();
  // Announces that this rank submits nothing more. Call it again when messages have finished: it then
  // announces more.
  absl::Status Leave();
  // Asks whether the other ends of messages that wait have left; for a receive from any rank, in later polls.
  // Called about once a second.
  absl::Status AskWitnesses();
  // Asks a witness of each neighbor node whether `rank` has left, and another one at each call: one that has
  // left itself may not have passed the news on.
  absl::Status AskAbout(int rank);
  // True if the rank's announcement that it sends nothing more has arrived.
  bool has_left(int rank) const { return left_senders_.contains(rank); }

  bool is_idle() const { return records_.empty(); }
  // True if an unfinished message may use the wire.
  bool uses_wire() const;
  // Unfinished messages, in the order of submission.
  std::vector<std::shared_ptr<OperationRecord>> unfinished() const;
  // For messages: "waits for rank(s) 3 to receive it".
  std::string DescribeWait(const OperationRecord& record) const;

 private:
  using Record = std::shared_ptr<OperationRecord>;

  absl::Status Send(int peer, const Signal& signal) override;
  bool IsRemote(int peer) const { return !env_.nodes.SameNode(peer, env_.rank); }
  OperationContext ContextOf(const Record& record) const;
  absl::Status Start(const Record& record);
  absl::Status StartReceive(const Record& record);
  absl::Status Match(const Record& record, const Announcement& announcement);
  absl::StatusOr<bool> HandleSignals();
  absl::Status HandleSignal(int source, const Signal& signal);
  static bool IsSend(const OperationRecord& record) { return record.descriptor.kind == OpKind::kSend; }
  absl::Status HandleLeft(const Signal& signal);
  absl::Status HandleQuestion(int asker, int leaver);
  // A rank of each neighbor node of `leaver`, which learns that it leaves. `place`: chooses among the ranks
  // of a node.
  std::vector<int> WitnessesOf(int leaver, int place) const;
  absl::Status CheckAnySource() const;
  // True if a receive from any rank asks whether this rank has left: it has not, and nobody has asked.
  bool MayAskAbout(int rank) const;
  // Asks about the last of `unasked_`, as long as a receive from any rank waits.
  absl::Status AskNext();
  IncomingMessage* FindIncoming(int source, uint64_t number);
  absl::StatusOr<bool> StepSends();
  absl::StatusOr<bool> StepReceives();
  absl::StatusOr<bool> StepReceive(IncomingMessage& receive);
  void Finish(const Record& record);
  // This rank's last announcement that it sends, or receives, nothing more.
  struct LeaveAnnouncement {
    bool is_complete = false;  // For this value of used_.
    bool used = false;
    std::set<int> recipients;
  };
  absl::Status AnnounceLeave(SignalKind kind, LeaveAnnouncement& announcement);
  // The ranks to which this rank announces that it leaves.
  std::vector<int> LeaveRecipients() const;

  const Environment env_;
  MessageEvents& events_;
  const GroupPlacement self_;  // A group of this rank alone.
  std::deque<Record> submitted_;
  std::map<uint64_t, Record> records_;                          // Unfinished messages, by number.
  std::map<uint64_t, std::unique_ptr<OutgoingMessage>> sends_;  // By number.
  MessageMatcher matcher_;
  std::vector<std::unique_ptr<IncomingMessage>> receives_;  // Matched, in the order of matching.
  std::set<std::pair<int, int>> busy_channels_;             // Peer and number of wire channels in use.
  std::deque<Signal> own_signals_;                          // From this rank to itself.
  bool used_ = false;                                       // This rank or a peer has used messages.
  std::set<int> interest_recipients_;                       // Ranks that have had kInterest of this rank.
  std::map<int, int> asked_about_;               // By rank: how often this rank has asked witnesses about it.
  std::vector<int> unasked_;                     // Ranks about which the next polls ask.
  std::vector<std::vector<int>> ranks_by_node_;  // Empty until `unasked_` has had ranks.
  std::map<int, std::set<int>> asked_by_;        // By rank that may leave: ranks that asked about it.
  std::set<int> unused_leavers_;                 // Ranks that have left and have had no message.
  std::set<int> left_senders_;                   // Ranks that send nothing more.
  std::set<int> left_receivers_;                 // Ranks that receive nothing more.
  LeaveAnnouncement no_more_sends_;
  LeaveAnnouncement no_more_receives_;
};

}  // namespace weft
