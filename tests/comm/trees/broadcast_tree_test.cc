#include "src/comm/trees/broadcast_tree.h"

#include <algorithm>
#include <bit>
#include <vector>

#include <gtest/gtest.h>

namespace weft {
namespace {

constexpr int kMaxNodes = 40;

template <typename Check>
void ForEachRoot(const Check& check) {
  for (int nodes = 1; nodes <= kMaxNodes; ++nodes) {
    for (int root = 0; root < nodes; ++root) {
      SCOPED_TRACE(::testing::Message() << nodes << " nodes, root " << root);
      check(nodes, root);
    }
  }
}

TEST(BroadcastTree, EachNodeReceivesFromTheNodeThatSendsToIt) {
  ForEachRoot([](int nodes, int root) {
    for (int tree = 0; tree < kBroadcastTrees; ++tree) {
      int edges = 0;
      for (int node = 0; node < nodes; ++node) {
        const BroadcastEdges own = EdgesOfBroadcast(tree, nodes, root, node);
        EXPECT_EQ(own.source.has_value(), node != root);
        edges += static_cast<int>(own.targets.size());
        for (const int target : own.targets)
          EXPECT_EQ(EdgesOfBroadcast(tree, nodes, root, target).source, node);
      }
      EXPECT_EQ(edges, nodes - 1);
    }
  });
}

TEST(BroadcastTree, ReachesEveryNodeInALogarithmicNumberOfSteps) {
  ForEachRoot([](int nodes, int root) {
    const int limit = 2 * static_cast<int>(std::bit_width(static_cast<unsigned>(nodes)));
    for (int tree = 0; tree < kBroadcastTrees; ++tree) {
      for (int node = 0; node < nodes; ++node) {
        int steps = 0;
        for (int at = node; at != root && steps <= limit; ++steps) {
          at = *EdgesOfBroadcast(tree, nodes, root, at).source;
        }
        EXPECT_LE(steps, limit) << "tree " << tree << ", node " << node;
      }
    }
  });
}

TEST(BroadcastTree, ALinkCarriesAtMostTwiceTheMessage) {
  ForEachRoot([](int nodes, int root) {
    for (int node = 0; node < nodes; ++node) {
      int halves = 0;
      for (int tree = 0; tree < kBroadcastTrees; ++tree) {
        const BroadcastEdges edges = EdgesOfBroadcast(tree, nodes, root, node);
        halves += static_cast<int>(edges.targets.size()) + (edges.source ? 1 : 0);
      }
      EXPECT_LE(halves, 4) << "node " << node;
    }
  });
}

TEST(BroadcastTree, HasTheSameEdgesForEveryRoot) {
  ForEachRoot([](int nodes, int root) {
    const auto neighbors = [&](int tree, int from, int node) {
      const BroadcastEdges edges = EdgesOfBroadcast(tree, nodes, from, node);
      std::vector<int> all(edges.targets.begin(), edges.targets.end());
      if (edges.source) all.push_back(*edges.source);
      std::sort(all.begin(), all.end());
      return all;
    };
    for (int tree = 0; tree < kBroadcastTrees; ++tree) {
      for (int node = 0; node < nodes; ++node)
        EXPECT_EQ(neighbors(tree, root, node), neighbors(tree, 0, node));
    }
  });
}

}  // namespace
}  // namespace weft
