#include "src/comm/engine/late_ranks.h"

#include <algorithm>
#include <utility>

#include "src/comm/base/named_ranks.h"

namespace weft {
namespace {

// An older inquiry is forgotten when another one begins. The answers of one that is final may be of the past,
// but a thread of this rank may wait for it for two seconds.
constexpr int64_t kForgetNs = 4 * LateRanks::kAnswerNs;
constexpr int64_t kForgetFinalNs = 2 * LateRanks::kAnswerNs;
// Ranks that a rank asks in one inquiry. More may be awaited in a direct exchange.
constexpr size_t kMostAsked = 64;

std::vector<int> FirstOf(const std::set<int>& ranks) {
  auto end = ranks.begin();
  std::advance(end, std::min(ranks.size(), LateRankAnswer::kMaxRanks));
  return {ranks.begin(), end};
}

}  // namespace

bool LateRanks::Inquiry::is_final() const {
  return std::all_of(peers.begin(), peers.end(), [](const auto& entry) { return entry.second.is_final; });
}

LateRanks::Inquiry& LateRanks::Begin(const Awaited& awaited, int64_t now_ns, Messages& messages) {
  std::erase_if(inquiries_, [now_ns](const auto& entry) {
    const auto& [number, inquiry] = entry;
    return now_ns - inquiry.begun_ns > (inquiry.is_final() ? kForgetFinalNs : kForgetNs);
  });
  const auto [it, is_new] = inquiries_.try_emplace(awaited.waits_in);
  Inquiry& inquiry = it->second;
  if (is_new) inquiry.begun_ns = now_ns;
  // An earlier inquiry may have been about other ranks.
  for (const int rank : awaited.ranks) {
    if (inquiry.peers.size() == kMostAsked) break;
    if (!inquiry.peers.try_emplace(rank, Peer{now_ns}).second) continue;
    messages.questions.push_back({rank, awaited.waits_in});
  }
  return inquiry;
}

void LateRanks::Inquire(const Awaited& awaited, int64_t now_ns, Messages& messages) {
  const auto found = inquiries_.find(awaited.waits_in);
  if (found != inquiries_.end() && found->second.is_final() && now_ns - found->second.begun_ns > kAnswerNs)
    inquiries_.erase(found);  // Its answers may be of the past, and its askers have them.
  Begin(awaited, now_ns, messages);
}

LateRankAnswer LateRanks::AnswerTo(const LateRankQuestion& asker, const Inquiry& inquiry) const {
  LateRankAnswer answer{
      {rank_, asker.about}, inquiry.is_final(), FirstOf(inquiry.late), FirstOf(inquiry.silent)};
  const bool is_cause = answer.is_final && answer.late.empty() && answer.silent.empty();
  if (is_cause && inquiry.askers.at(asker)) answer.late = {rank_};
  return answer;
}

void LateRanks::OnQuestion(const LateRankQuestion& from, Lookup lookup, int64_t now_ns, Messages& messages) {
  const Awaited awaited = lookup(from.about);
  if (awaited.ranks.empty()) {
    LateRankAnswer answer{{rank_, from.about}, /*is_final=*/true, {}, {}};
    if (!awaited.is_submitted) answer.late = {rank_};
    messages.answers.emplace_back(from.peer, std::move(answer));
    return;
  }
  Inquiry& inquiry = Begin(awaited, now_ns, messages);
  inquiry.askers[from] = !awaited.is_submitted;
  messages.answers.emplace_back(from.peer, AnswerTo(from, inquiry));
}

void LateRanks::OnAnswer(const LateRankAnswer& answer, Messages& messages) {
  const auto found = inquiries_.find(answer.question.about);
  if (found == inquiries_.end()) return;
  Inquiry& inquiry = found->second;
  const auto peer = inquiry.peers.find(answer.question.peer);
  if (peer == inquiry.peers.end()) return;
  const size_t known = inquiry.late.size() + inquiry.silent.size();
  inquiry.late.insert(answer.late.begin(), answer.late.end());
  inquiry.silent.insert(answer.silent.begin(), answer.silent.end());
  peer->second.has_answered = true;
  const bool becomes_final = answer.is_final && !std::exchange(peer->second.is_final, true);
  if (known != inquiry.late.size() + inquiry.silent.size() || (becomes_final && inquiry.is_final()))
    AnswerAll(inquiry, messages);
}

void LateRanks::Poll(int64_t now_ns, Messages& messages) {
  for (auto& [number, inquiry] : inquiries_) {
    bool changed = false;
    for (auto& [rank, peer] : inquiry.peers) {
      if (peer.has_answered || peer.is_final || now_ns - peer.asked_ns < kAnswerNs) continue;
      peer.is_final = true;
      inquiry.silent.insert(rank);
      changed = true;
    }
    if (changed) AnswerAll(inquiry, messages);
  }
}

void LateRanks::AnswerAll(const Inquiry& inquiry, Messages& messages) const {
  for (const auto& [asker, is_late] : inquiry.askers)
    messages.answers.emplace_back(asker.peer, AnswerTo(asker, inquiry));
}

bool LateRanks::is_final(const OperationNumber& waits_in) const {
  const auto found = inquiries_.find(waits_in);
  return found == inquiries_.end() || found->second.is_final();
}

std::string LateRanks::Describe(const OperationNumber& waits_in, std::set<int> also_silent) const {
  std::set<int> late;
  if (const auto found = inquiries_.find(waits_in); found != inquiries_.end()) {
    also_silent.insert(found->second.silent.begin(), found->second.silent.end());
    late = found->second.late;
  }
  return DescribeMissing(also_silent, late);
}

}  // namespace weft
