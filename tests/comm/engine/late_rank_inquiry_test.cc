// Inquiries after late and silent ranks: chains of waits, also through other operations.
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "src/comm/engine/late_ranks.h"

namespace weft {
namespace {

constexpr OperationNumber kFirst{1, 10};
constexpr OperationNumber kOther{2, 20};

// Ranks whose messages arrive in the order of sending. Silent ranks take none.
class Ranks {
 public:
  explicit Ranks(int size) {
    for (int rank = 0; rank < size; ++rank) ranks_.emplace_back(rank);
  }
  // Sets the state of kFirst or kOther on rank `rank`, which it answers with.
  void Set(int rank, const OperationNumber& about, LateRanks::Awaited awaited) {
    awaited_[{rank, about}] = std::move(awaited);
  }
  void Silence(int rank) { silent_.insert(rank); }

  // The description of the inquiry of rank 0, which waits for `awaited` in kFirst.
  std::string Inquire(const std::vector<int>& awaited, int64_t now_ns = 0) {
    now_ns_ = now_ns;
    LateRanks::Messages messages;
    ranks_[0].Inquire({true, kFirst, awaited}, now_ns_, messages);
    Deliver(0, messages);
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
      LateRanks::Messages late;
      ranks_[static_cast<size_t>(rank)].Poll(now_ns_ + LateRanks::kAnswerNs, late);
      Deliver(rank, late);
    }
    return ranks_[0].Describe(kFirst, {});
  }
  bool is_final() const { return ranks_[0].is_final(kFirst); }
  int sent() const { return sent_; }

 private:
  void Deliver(int from, const LateRanks::Messages& first) {
    std::deque<std::pair<int, LateRanks::Messages>> pending = {{from, first}};
    while (!pending.empty()) {
      const auto [sender, messages] = std::move(pending.front());
      pending.pop_front();
      sent_ += static_cast<int>(messages.questions.size() + messages.answers.size());
      for (LateRankQuestion question : messages.questions) {
        const int receiver = std::exchange(question.peer, sender);
        if (silent_.contains(receiver)) continue;
        LateRanks::Messages replies;
        ranks_[static_cast<size_t>(receiver)].OnQuestion(
            question,
            [&](const OperationNumber& about) {
              return awaited_.at({receiver, about});
            },
            now_ns_, replies);
        pending.emplace_back(receiver, std::move(replies));
      }
      for (const auto& [receiver, answer] : messages.answers) {
        LateRanks::Messages replies;
        ranks_[static_cast<size_t>(receiver)].OnAnswer(answer, replies);
        pending.emplace_back(receiver, std::move(replies));
      }
    }
  }

  std::vector<LateRanks> ranks_;
  std::map<std::pair<int, OperationNumber>, LateRanks::Awaited> awaited_;
  std::set<int> silent_;
  int64_t now_ns_ = 0;
  int sent_ = 0;
};

TEST(LateRanks, NamesTheRankAtTheEndOfAChain) {
  Ranks ranks(4);
  ranks.Set(1, kFirst, {true, kFirst, {2}});
  ranks.Set(2, kFirst, {true, kFirst, {3}});
  ranks.Set(3, kFirst, {false, kFirst, {}});
  EXPECT_EQ(ranks.Inquire({1}), "rank(s) 3 have not submitted what others wait for; ");
  EXPECT_TRUE(ranks.is_final());
  EXPECT_LE(ranks.sent(), 3 * 3);  // A question and at most two answers on each edge.
}

TEST(LateRanks, FollowsALateRankIntoTheOperationInWhichItWaits) {
  Ranks ranks(3);
  ranks.Set(1, kFirst, {false, kOther, {2}});
  ranks.Silence(2);
  EXPECT_EQ(ranks.Inquire({1}), "no heartbeat from rank(s) 2; ");
  EXPECT_TRUE(ranks.is_final());
}

TEST(LateRanks, NamesALateRankWhosePeersAreNotLate) {
  Ranks ranks(3);
  ranks.Set(1, kFirst, {false, kOther, {2}});
  ranks.Set(2, kOther, {true, kOther, {}});
  EXPECT_EQ(ranks.Inquire({1}), "rank(s) 1 have not submitted what others wait for; ");
}

TEST(LateRanks, NamesSeveral) {
  Ranks ranks(5);
  ranks.Set(1, kFirst, {true, kFirst, {2, 3}});
  ranks.Set(2, kFirst, {false, kFirst, {}});
  ranks.Silence(3);
  ranks.Silence(4);
  EXPECT_EQ(ranks.Inquire({1, 4}),
            "no heartbeat from rank(s) 3, 4; rank(s) 2 have not submitted what others wait for; ");
  EXPECT_TRUE(ranks.is_final());
}

TEST(LateRanks, ASecondInquiryNamesTheRanksThatAreLateThen) {
  Ranks ranks(3);
  ranks.Set(1, kFirst, {false, kFirst, {}});
  ranks.Set(2, kFirst, {false, kFirst, {}});
  EXPECT_EQ(ranks.Inquire({1}), "rank(s) 1 have not submitted what others wait for; ");
  EXPECT_EQ(ranks.Inquire({2}, 3 * LateRanks::kAnswerNs),
            "rank(s) 2 have not submitted what others wait for; ");
}

// Rank 2 has submitted the operation since rank 1 asked it.
TEST(LateRanks, AnOldAnswerIsNotPassedOn) {
  Ranks ranks(3);
  ranks.Set(1, kFirst, {true, kFirst, {2}});
  ranks.Set(2, kFirst, {false, kFirst, {}});
  EXPECT_EQ(ranks.Inquire({1}), "rank(s) 2 have not submitted what others wait for; ");
  ranks.Set(2, kFirst, {true, kFirst, {}});
  EXPECT_EQ(ranks.Inquire({1}, 3 * LateRanks::kAnswerNs), "");
}

TEST(LateRanks, AnInquiryThatBeganWithoutPeersAsksThoseAwaitedSince) {
  Ranks ranks(2);
  ranks.Set(1, kFirst, {false, kFirst, {}});
  EXPECT_EQ(ranks.Inquire({}), "");
  EXPECT_EQ(ranks.Inquire({1}), "rank(s) 1 have not submitted what others wait for; ");
}

TEST(LateRanks, EndsIfRanksWaitForEachOther) {
  Ranks ranks(3);
  ranks.Set(1, kFirst, {true, kFirst, {2}});
  ranks.Set(2, kFirst, {true, kFirst, {1}});
  EXPECT_EQ(ranks.Inquire({1}), "");
  EXPECT_FALSE(ranks.is_final());
}

}  // namespace
}  // namespace weft
