// Form of small exchanges between nodes, and the exchanges of recursive halving.
#include "src/comm/trees/relay_choice.h"

#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "src/comm/base/reduction_tree.h"
#include "src/comm/trees/halving.h"

namespace weft {
namespace {

constexpr int64_t kSmall = 64;  // Bytes of a part.

TEST(RelayChoice, RelaysSmallExchangesBetweenManyNodesOnly) {
  for (const int nodes : {2, 3, 8, 32}) {
    EXPECT_FALSE(RelayedGatherPays(nodes, nodes * kSmall)) << nodes;
    EXPECT_FALSE(RelayedReduceScatterPays(nodes, 1, nodes * kSmall)) << nodes;
    EXPECT_FALSE(RelayedAllReducePays(nodes, 1, nodes * kSmall)) << nodes;
    EXPECT_FALSE(TreePays(nodes)) << nodes;
  }
  for (const int nodes : {256, 512, 4096}) {
    EXPECT_TRUE(RelayedGatherPays(nodes, nodes * kSmall)) << nodes;
    EXPECT_TRUE(RelayedReduceScatterPays(nodes, 1, nodes * kSmall)) << nodes;
    EXPECT_TRUE(RelayedAllReducePays(nodes, 1, nodes * kSmall)) << nodes;
    EXPECT_TRUE(TreePays(nodes)) << nodes;
  }
}

TEST(RelayChoice, NeverPaysForMoreBytesOrInputsIfItDoesNotForFewer) {
  for (int nodes = 2; nodes < 600; ++nodes) {
    bool gather = true;
    bool sum = true;
    bool all_reduce = true;
    for (int64_t bytes = 1; bytes < (1 << 20); bytes *= 2) {
      EXPECT_TRUE(gather || !RelayedGatherPays(nodes, bytes)) << nodes << " nodes, " << bytes;
      EXPECT_TRUE(sum || !RelayedReduceScatterPays(nodes, 1, bytes)) << nodes << " nodes, " << bytes;
      EXPECT_TRUE(RelayedReduceScatterPays(nodes, 1, bytes) || !RelayedReduceScatterPays(nodes, 64, bytes));
      EXPECT_TRUE(all_reduce || !RelayedAllReducePays(nodes, 1, bytes)) << nodes << " nodes, " << bytes;
      all_reduce = RelayedAllReducePays(nodes, 1, bytes);
      gather = RelayedGatherPays(nodes, bytes);
      sum = RelayedReduceScatterPays(nodes, 1, bytes);
    }
  }
  // 64 ranks of a node share the sum of their inputs in a direct exchange.
  EXPECT_TRUE(RelayedReduceScatterPays(256, 1, 65'536));
  EXPECT_FALSE(RelayedReduceScatterPays(256, 64, 65'536));
}

// A node next to a power of two would exchange a message with most of the others.
TEST(RelayChoice, DoesNotRelaySumsIfANodeHadManyExchanges) {
  EXPECT_TRUE(RelayedReduceScatterPays(256, 1, 1024));
  EXPECT_FALSE(RelayedReduceScatterPays(257, 1, 1028));
}

// An all-reduce has parts at so few nodes that none has many exchanges.
TEST(RelayChoice, RelaysSmallAllReducesBetweenAnyNumberOfManyNodes) {
  for (int nodes = 128; nodes < 600; ++nodes) EXPECT_TRUE(RelayedAllReducePays(nodes, 1, 4096)) << nodes;
}

TEST(RelayChoice, DividesAnAllReduceIntoPartsOfAFewKibibytes) {
  for (int nodes = 2; nodes < 300; ++nodes) {
    for (int64_t bytes = 1; bytes <= kMaxRelayedBytes; bytes *= 2) {
      const int owners = OwnersOfAllReduce(nodes, bytes);
      EXPECT_TRUE(std::has_single_bit(static_cast<unsigned>(owners))) << owners;
      EXPECT_LE(owners, nodes);
      EXPECT_TRUE(owners == 1 || bytes >= 4096 * owners) << owners << " parts of " << bytes;
    }
  }
  EXPECT_EQ(OwnersOfAllReduce(256, 65'536), 16);
}

std::string CanonicalTree(int lo, int n) {
  if (n == 1) return absl::StrCat(lo);
  const int left = LeftSize(n);
  return absl::StrCat("(", CanonicalTree(lo, left), " ", CanonicalTree(lo + left, n - left), ")");
}

// The sums, as text, that the nodes have for the part of each owner. Those that they have sent are removed.
using Sums = std::vector<std::map<int, std::string>>;

void RunLevel(const std::vector<std::vector<HalvingExchange>>& exchanges, int level, Sums& sums) {
  const Sums before = sums;
  for (size_t node = 0; node < sums.size(); ++node) {
    for (const HalvingExchange& exchange : exchanges[node]) {
      if (exchange.level != level) continue;
      const int classes = 1 << (level + 1);
      for (const auto& [owner, own] : before[node]) {
        if (owner % classes == exchange.sent) sums[node].erase(owner);
        if (owner % classes != exchange.kept) continue;
        const std::string& received = before[static_cast<size_t>(exchange.peer)].at(owner);
        sums[node][owner] = exchange.keeps_left ? absl::StrCat("(", own, " ", received, ")")
                                                : absl::StrCat("(", received, " ", own, ")");
      }
    }
  }
}

TEST(Halving, GivesEachNodeItsPartInTheCanonicalOrder) {
  for (int nodes = 2; nodes <= 70; ++nodes) {
    std::vector<std::vector<HalvingExchange>> exchanges;
    Sums sums(static_cast<size_t>(nodes));
    for (int node = 0; node < nodes; ++node) {
      exchanges.push_back(HalvingExchangesOf(node, nodes));
      for (int owner = 0; owner < nodes; ++owner) sums[static_cast<size_t>(node)][owner] = absl::StrCat(node);
    }
    for (int level = 0; level < HalvingLevels(nodes); ++level) RunLevel(exchanges, level, sums);
    for (int node = 0; node < nodes; ++node) {
      const auto& held = sums[static_cast<size_t>(node)];
      ASSERT_EQ(held.size(), 1U) << "node " << node << " of " << nodes;
      EXPECT_EQ(held.begin()->first, node);
      EXPECT_EQ(held.begin()->second, CanonicalTree(0, nodes));
    }
  }
}

// The largest number of exchanges of a node in which a class has parts, if the first nodes own them.
int MostExchangesWithParts(int nodes, int owners) {
  int most = 0;
  for (int node = 0; node < nodes; ++node) {
    int exchanges = 0;
    for (const HalvingExchange& exchange : HalvingExchangesOf(node, nodes))
      exchanges += exchange.kept < owners || exchange.sent < owners;
    most = std::max(most, exchanges);
  }
  return most;
}

TEST(Halving, HasExchangesThatMatchThoseOfThePeersAndAreBounded) {
  for (int nodes = 2; nodes <= 130; ++nodes) {
    for (int node = 0; node < nodes; ++node) {
      const std::vector<HalvingExchange> own = HalvingExchangesOf(node, nodes);
      EXPECT_LE(static_cast<int>(own.size()), MostHalvingExchanges(nodes, nodes));
      std::set<int> peers;
      for (const HalvingExchange& exchange : own) {
        EXPECT_TRUE(peers.insert(exchange.peer).second) << "one message for each direction and peer";
        int matches = 0;
        for (const HalvingExchange& theirs : HalvingExchangesOf(exchange.peer, nodes)) {
          matches += theirs.peer == node && theirs.level == exchange.level && theirs.kept == exchange.sent &&
                     theirs.sent == exchange.kept && theirs.keeps_left != exchange.keeps_left;
        }
        EXPECT_EQ(matches, 1);
      }
    }
    for (int owners = 1; owners <= nodes; owners *= 2) {
      EXPECT_LE(MostExchangesWithParts(nodes, owners), MostHalvingExchanges(nodes, owners)) << owners;
      EXPECT_LE(MostHalvingExchanges(nodes, owners), HalvingLevels(nodes) + 2 * owners) << owners;
    }
    if (std::has_single_bit(static_cast<unsigned>(nodes))) {
      EXPECT_EQ(MostHalvingExchanges(nodes, nodes), HalvingLevels(nodes));
    }
  }
  EXPECT_EQ(MostHalvingExchanges(72, 72), 11);  // Three in its group of eight, and eight with the others.
}

TEST(Halving, OrdersTheOwnersOfEveryClassEndToEnd) {
  constexpr int kLevels = 5;
  for (int level = 0; level < kLevels; ++level) {
    for (int node = 0; node < 1 << kLevels; ++node) {
      const int first = FirstPlaceOfClass(node % (2 << level), kLevels);
      const int place = FirstPlaceOfClass(node, kLevels);
      EXPECT_GE(place, first);
      EXPECT_LT(place, first + (1 << (kLevels - level - 1)));
    }
  }
}

}  // namespace
}  // namespace weft
