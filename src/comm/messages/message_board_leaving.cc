// Leaving: the announcements of a rank that submits no more messages, and those that it gets from others. See
// Note [Messages].
#include <algorithm>
#include <numeric>

#include "src/comm/messages/message_board.h"
#include "src/comm/trees/node_graph.h"
#include "weft/core/status.h"

namespace weft {
namespace {

std::vector<std::vector<int>> RanksByNode(const NodeMap& nodes) {
  std::vector<std::vector<int>> ranks(static_cast<size_t>(nodes.node_count()));
  for (int rank = 0; rank < nodes.size(); ++rank)
    ranks[static_cast<size_t>(nodes.node_of_rank[static_cast<size_t>(rank)])].push_back(rank);
  return ranks;
}

}  // namespace

absl::Status MessageBoard::HandleLeft(const Signal& signal) {
  const int leaver = signal.leaver;
  Signal forwarded = signal;
  forwarded.for_whole_node = false;
  if (signal.for_whole_node) {
    for (const int peer : env_.nodes.RanksOf(env_.nodes.node_of_rank[static_cast<size_t>(env_.rank)])) {
      if (peer != env_.rank) WEFT_RETURN_IF_ERROR(Send(peer, forwarded));
    }
  }
  if (signal.is_unused) unused_leavers_.insert(leaver);
  const bool is_news =
      (signal.kind == SignalKind::kNoMoreSends ? left_senders_ : left_receivers_).insert(leaver).second;
  // Ranks that ask each other must not tell each other without end.
  if (const auto askers = asked_by_.find(leaver); askers != asked_by_.end() && signal.is_unused && is_news) {
    for (const int peer : askers->second) WEFT_RETURN_IF_ERROR(Send(peer, forwarded));
  }
  if (signal.kind == SignalKind::kNoMoreSends) {
    for (const Record& receive : matcher_.waiting()) {
      if (receive->message->peer == leaver) return HasLeft(leaver, "sent", *receive);
    }
    return absl::OkStatus();
  }
  for (const auto& [number, send] : sends_) {
    if (send->message().peer == leaver && !send->granted())
      return HasLeft(leaver, "received", *send->record());
  }
  return absl::OkStatus();
}

// A receive from any rank fails once no other rank is left, and a thread waits for it: until then, this rank
// may still send to itself.
absl::Status MessageBoard::CheckAnySource() const {
  const int others = env_.nodes.size() - 1;
  if (others == 0 || static_cast<int>(left_senders_.size()) < others) return absl::OkStatus();
  for (const Record& receive : matcher_.waiting()) {
    if (receive->message->peer == kAnySource && receive->message->awaited)
      return HasLeft(*left_senders_.rbegin(), "sent, as the last of all other ranks,", *receive);
  }
  return absl::OkStatus();
}

absl::Status MessageBoard::Leave() {
  WEFT_RETURN_IF_ERROR(AnnounceLeave(SignalKind::kNoMoreSends, no_more_sends_));
  const bool receives =
      std::any_of(records_.begin(), records_.end(), [](const auto& entry) { return !IsSend(*entry.second); });
  return receives ? absl::OkStatus() : AnnounceLeave(SignalKind::kNoMoreReceives, no_more_receives_);
}

std::vector<int> MessageBoard::WitnessesOf(int leaver, int place) const {
  const auto at_place = [place](const std::vector<int>& ranks) {
    return ranks[static_cast<size_t>(place) % ranks.size()];
  };
  std::vector<int> witnesses;
  const int node = env_.nodes.node_of_rank[static_cast<size_t>(leaver)];
  for (const int neighbor : NeighborNodes(node, env_.nodes.node_count())) {
    witnesses.push_back(ranks_by_node_.empty() ? at_place(env_.nodes.RanksOf(neighbor))
                                               : at_place(ranks_by_node_[static_cast<size_t>(neighbor)]));
  }
  return witnesses;
}

// Each rank picks another rank of a neighbor node, since one of them may have left.
std::vector<int> MessageBoard::LeaveRecipients() const {
  std::vector<int> ranks;
  if (used_) {
    ranks.resize(static_cast<size_t>(env_.nodes.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
  } else {
    ranks = WitnessesOf(env_.rank, env_.rank);
    const std::vector<int> local =
        env_.nodes.RanksOf(env_.nodes.node_of_rank[static_cast<size_t>(env_.rank)]);
    ranks.insert(ranks.end(), local.begin(), local.end());
  }
  std::erase(ranks, env_.rank);
  return ranks;
}

absl::Status MessageBoard::AskWitnesses() {
  std::set<int> awaited;
  for (const Record& receive : matcher_.waiting()) awaited.insert(receive->message->peer);
  for (const auto& [number, send] : sends_) {
    if (!send->granted()) awaited.insert(send->message().peer);
  }
  const bool awaits_any = awaited.erase(kAnySource) > 0;
  for (const int rank : awaited) {
    if (IsRemote(rank)) WEFT_RETURN_IF_ERROR(AskAbout(rank));
  }
  // Questions about all ranks are many, so they are asked once, about one rank in each poll.
  unasked_.clear();
  for (int rank = 0; awaits_any && rank < env_.nodes.size(); ++rank) {
    if (MayAskAbout(rank)) unasked_.push_back(rank);
  }
  if (!unasked_.empty() && ranks_by_node_.empty()) ranks_by_node_ = RanksByNode(env_.nodes);
  return absl::OkStatus();
}

bool MessageBoard::MayAskAbout(int rank) const {
  return IsRemote(rank) && !left_senders_.contains(rank) && !asked_about_.contains(rank);
}

absl::Status MessageBoard::AskNext() {
  if (unasked_.empty()) return absl::OkStatus();
  const std::vector<Record> waiting = matcher_.waiting();
  const bool awaits_any = std::any_of(waiting.begin(), waiting.end(), [](const Record& receive) {
    return receive->message->peer == kAnySource;
  });
  if (!awaits_any) unasked_.clear();
  while (!unasked_.empty() && !MayAskAbout(unasked_.back())) unasked_.pop_back();
  if (unasked_.empty()) return absl::OkStatus();
  const int rank = unasked_.back();
  unasked_.pop_back();
  return AskAbout(rank);
}

absl::Status MessageBoard::AskAbout(int rank) {
  Signal question;
  question.kind = SignalKind::kAsksWitness;
  question.leaver = rank;
  const int place = env_.rank + asked_about_[rank]++;
  // Witnesses on this node tell its ranks unasked.
  for (const int witness : WitnessesOf(rank, place)) {
    if (IsRemote(witness)) WEFT_RETURN_IF_ERROR(Send(witness, question));
  }
  return absl::OkStatus();
}

absl::Status MessageBoard::HandleQuestion(int asker, int leaver) {
  asked_by_[leaver].insert(asker);
  if (!unused_leavers_.contains(leaver)) return absl::OkStatus();
  Signal answer;
  answer.leaver = leaver;
  answer.is_unused = true;
  for (const auto& [kind, left] : {std::pair{SignalKind::kNoMoreSends, &left_senders_},
                                   std::pair{SignalKind::kNoMoreReceives, &left_receivers_}}) {
    answer.kind = kind;
    if (left->contains(leaver)) WEFT_RETURN_IF_ERROR(Send(asker, answer));
  }
  return absl::OkStatus();
}

absl::Status MessageBoard::AnnounceLeave(SignalKind kind, LeaveAnnouncement& announcement) {
  if (announcement.is_complete && announcement.used == used_) return absl::OkStatus();
  announcement.is_complete = true;
  announcement.used = used_;
  Signal signal;
  signal.kind = kind;
  signal.leaver = env_.rank;
  signal.is_unused = !used_;
  for (const int peer : LeaveRecipients()) {
    if (!announcement.recipients.insert(peer).second) continue;
    signal.for_whole_node = !used_ && IsRemote(peer);
    WEFT_RETURN_IF_ERROR(Send(peer, signal));
  }
  return absl::OkStatus();
}

}  // namespace weft
