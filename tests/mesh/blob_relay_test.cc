// The all-gather of blobs by relays: its messages, late ranks, and the ranks that it names.
#include "src/mesh/rounds/blob_relay.h"

#include <bit>
#include <random>
#include <set>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "weft/core/status.h"

namespace weft::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

int CeilLog2(int n) { return static_cast<int>(std::bit_width(static_cast<unsigned>(n - 1))); }

// A blob of a length of its own, sometimes 0.
std::string BlobOf(int rank) { return std::string(static_cast<size_t>(rank % 5), static_cast<char>(rank)); }

// The ranks of a round. Messages arrive in random order; silent ranks get and send none.
class Ranks {
 public:
  explicit Ranks(int size) : sent_(static_cast<size_t>(size)), peers_(static_cast<size_t>(size)) {
    for (int rank = 0; rank < size; ++rank) relays_.emplace_back(7, rank, size);
  }

  int size() const { return static_cast<int>(relays_.size()); }
  BlobRelay& operator[](int rank) { return relays_[static_cast<size_t>(rank)]; }
  void Silence(std::set<int> ranks) { silent_ = std::move(ranks); }
  bool IsSilent(int rank) const { return silent_.contains(rank); }
  void Call(int rank) {
    callers_.insert(rank);
    (*this)[rank].Contribute(BlobOf(rank));
  }

  void DeliverAll() {
    Collect();
    while (!in_flight_.empty()) {
      std::swap(in_flight_[random_() % in_flight_.size()], in_flight_.back());
      const BlobRelay::Message message = std::move(in_flight_.back());
      in_flight_.pop_back();
      if (IsSilent(message.peer)) continue;
      ASSERT_OK((*this)[message.peer].Receive(*message.bytes));
      Collect(message.peer);
    }
  }
  void GossipAll() {
    for (const int rank : callers_) (*this)[rank].Gossip();
    DeliverAll();
  }
  int64_t sent(int rank) const { return sent_[static_cast<size_t>(rank)]; }
  size_t peers(int rank) const { return peers_[static_cast<size_t>(rank)].size(); }

 private:
  void Collect() {
    for (int rank = 0; rank < size(); ++rank) Collect(rank);
  }
  void Collect(int rank) {
    if (IsSilent(rank)) return;
    for (BlobRelay::Message& message : (*this)[rank].TakeMessages()) {
      ++sent_[static_cast<size_t>(rank)];
      peers_[static_cast<size_t>(rank)].insert(message.peer);
      in_flight_.push_back(std::move(message));
    }
  }

  std::vector<BlobRelay> relays_;
  std::vector<BlobRelay::Message> in_flight_;
  std::set<int> callers_;
  std::set<int> silent_;
  std::vector<int64_t> sent_;
  std::vector<std::set<int>> peers_;
  std::mt19937 random_{1};
};

void ExpectAllBlobs(BlobRelay& relay, int size) {
  ASSERT_TRUE(relay.complete());
  const std::vector<std::string> blobs = relay.TakeBlobs();
  for (int rank = 0; rank < size; ++rank) ASSERT_EQ(blobs[static_cast<size_t>(rank)], BlobOf(rank));
}

TEST(BlobRelay, EveryRankGetsAllBlobsAndSendsAMessageForEachLevel) {
  for (const int size : {1, 2, 3, 4, 5, 7, 8, 13, 64, 100, 200}) {
    SCOPED_TRACE(size);
    Ranks ranks(size);
    for (int rank = 0; rank < size; ++rank) ranks.Call(rank);
    ranks.DeliverAll();
    for (int rank = 0; rank < size; ++rank) {
      ExpectAllBlobs(ranks[rank], size);
      EXPECT_EQ(ranks.sent(rank), CeilLog2(size));
      EXPECT_LE(ranks.peers(rank), static_cast<size_t>(CeilLog2(size)));
    }
  }
}

// The blobs of a step may be more than a message can have.
TEST(BlobRelay, SplitsTheBlobsOfAStepIntoSeveralMessages) {
  constexpr int kSize = 16;
  constexpr size_t kMaxBytes = 100;
  constexpr size_t kHeaders = 32;  // Of a message and of a blob.
  const auto blob = [](int rank) {
    return std::string(static_cast<size_t>(rank * 6), static_cast<char>('a' + rank));
  };
  std::vector<BlobRelay> relays;
  for (int rank = 0; rank < kSize; ++rank) relays.emplace_back(7, rank, kSize, kMaxBytes);
  int messages = 0;
  for (int rank = 0; rank < kSize; ++rank) relays[static_cast<size_t>(rank)].Contribute(blob(rank));
  for (bool sent = true; sent;) {
    sent = false;
    for (BlobRelay& relay : relays) {
      for (const BlobRelay::Message& message : relay.TakeMessages()) {
        EXPECT_LE(message.bytes->size(), kMaxBytes + kHeaders);
        ASSERT_OK(relays[static_cast<size_t>(message.peer)].Receive(*message.bytes));
        ++messages;
        sent = true;
      }
    }
  }
  EXPECT_GT(messages, kSize * CeilLog2(kSize));
  for (BlobRelay& relay : relays) {
    ASSERT_TRUE(relay.complete());
    const std::vector<std::string> blobs = relay.TakeBlobs();
    for (int rank = 0; rank < kSize; ++rank) EXPECT_EQ(blobs[static_cast<size_t>(rank)], blob(rank));
  }
}

// See Note [Reset rounds].
TEST(BlobRelay, ALateRankNeedsNothingThatDependsOnItself) {
  for (const int size : {2, 3, 7, 16, 29}) {
    for (int late = 0; late < size; ++late) {
      Ranks ranks(size);
      for (int rank = 0; rank < size; ++rank) {
        if (rank != late) ranks.Call(rank);
      }
      ranks.DeliverAll();
      for (int time = 0; time < CeilLog2(size); ++time) ranks.GossipAll();
      ranks.Call(late);
      ExpectAllBlobs(ranks[late], size);
      ranks.DeliverAll();
      for (int rank = 0; rank < size; ++rank) EXPECT_TRUE(ranks[rank].complete());
    }
  }
}

TEST(BlobRelay, EveryRankNamesExactlyTheSilentRanks) {
  for (const int size : {2, 5, 16, 60}) {
    SCOPED_TRACE(size);
    std::mt19937 random(2);
    for (int trial = 0; trial < 4; ++trial) {
      Ranks ranks(size);
      // Rank 0 hears from `levels` ranks.
      const int levels = CeilLog2(size);
      std::set<int> silent = {1};
      while (static_cast<int>(silent.size()) < levels - 1)
        silent.insert(trial % 2 == 0 ? 1 << (random() % static_cast<unsigned>(levels))
                                     : 1 + static_cast<int>(random() % static_cast<unsigned>(size - 1)));
      ranks.Silence(silent);
      for (int rank = 0; rank < size; ++rank) {
        if (!ranks.IsSilent(rank)) ranks.Call(rank);
      }
      ranks.DeliverAll();
      for (int time = 0; time < 2 * levels; ++time) ranks.GossipAll();
      for (int rank = 0; rank < size; ++rank) {
        if (ranks.IsSilent(rank)) continue;
        EXPECT_EQ(ranks[rank].MissingRanks(), std::vector<int>(silent.begin(), silent.end())) << rank;
        EXPECT_FALSE(ranks[rank].complete());
        EXPECT_LE(ranks.sent(rank), 2 * (2 * levels + 1) * levels);
      }
    }
  }
}

TEST(BlobRelay, KeepsWhatArrivesBeforeItsOwnCall) {
  Ranks ranks(2);
  ranks.Call(1);
  ranks.DeliverAll();
  EXPECT_FALSE(ranks[0].complete());
  EXPECT_THAT(ranks[0].MissingBlobs(), ElementsAre(0));
  EXPECT_THAT(ranks[1].MissingBlobs(), ElementsAre(0));
  ranks.Call(0);
  ExpectAllBlobs(ranks[0], 2);
}

TEST(BlobRelay, RefusesMessagesOfOthers) {
  BlobRelay sender(1, 1, 4);
  sender.Contribute("a blob");
  const std::string good = *sender.TakeMessages().front().bytes;
  EXPECT_EQ(BlobRelay::RoundOf(good), 1);
  EXPECT_EQ(BlobRelay::RoundOf("no message of this program"), std::nullopt);
  for (size_t length = 0; length < good.size(); ++length) {
    const bool empty = length == good.size() - std::string("a blob").size() - 16;  // A message without blobs.
    EXPECT_EQ(BlobRelay(1, 0, 4).Receive(good.substr(0, length)).ok(), empty) << length;
  }
  EXPECT_OK(BlobRelay(1, 0, 4).Receive(good));
  EXPECT_THAT(BlobRelay(2, 0, 4).Receive(good),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("malformed")));  // Another round.
  EXPECT_THAT(BlobRelay(1, 0, 1).Receive(good),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("malformed")));  // Rank 1 of one.
  EXPECT_THAT(BlobRelay(1, 1, 4).Receive(good),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("malformed")));  // Its own blob.
}

}  // namespace
}  // namespace weft::internal
