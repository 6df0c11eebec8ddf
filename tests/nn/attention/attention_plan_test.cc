#include "src/nn/attention/attention_plan.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/attention_oracle.h"

namespace weft::testing {
namespace {

using Order = AttentionPlan::Order;

const std::vector<AttentionMask> kMasks = {
    {false, std::nullopt}, {true, std::nullopt}, {true, 1}, {true, 5}, {true, 130}};

struct Layout {
  TokenRuns queries;
  std::vector<TokenRuns> blocks;
};

const std::vector<Layout> kLayouts = {
    {WholeSequence(300), {WholeSequence(300)}},
    {{{0, 90, 70}, {0, 400, 75}}, {{{0, 0, 90}}, {{0, 160, 240}}, {}, {{0, 90, 70}, {0, 400, 75}}}},
    {{{0, 0, 30}, {1, 0, 150}, {2, 5, 1}}, {{{0, 0, 30}, {1, 0, 150}, {2, 0, 9}}}},
};

AttentionPlan PlanOf(const AttentionMask& mask, const Layout& layout, Order order) {
  std::vector<const TokenRuns*> blocks;
  for (const TokenRuns& block : layout.blocks) blocks.push_back(&block);
  return {mask, layout.queries, blocks, {128, 192}, order};
}

std::vector<AttentionTile> TilesOf(const AttentionPlan& plan, Order order) {
  const int64_t groups =
      order == Order::kByRowBlock ? plan.row_blocks() : static_cast<int64_t>(plan.key_tiles().size());
  std::vector<AttentionTile> tiles;
  for (int64_t group = 0; group < groups; ++group) {
    const absl::Span<const AttentionTile> more = plan.TilesOf(group);
    tiles.insert(tiles.end(), more.begin(), more.end());
  }
  return tiles;
}

// Indices of a query, a key block, and a key of that block.
struct Pair {
  int64_t query, block, key;
  bool operator==(const Pair&) const = default;
  bool operator<(const Pair& other) const {
    return std::tie(query, block, key) < std::tie(other.query, other.block, other.key);
  }
};

std::vector<Pair> PlannedPairs(const AttentionPlan& plan, const std::vector<AttentionTile>& tiles) {
  std::vector<Pair> pairs;
  for (const AttentionTile& tile : tiles) {
    for (int64_t row = 0; row < tile.rows; ++row) {
      for (const ColumnSpan& span : plan.VisibleColumns(tile, row)) {
        EXPECT_LE(span.end, tile.columns);
        for (int64_t column = span.begin; column < span.end; ++column) {
          pairs.push_back({tile.first_row + row, plan.BlockOf(tile), tile.first_key + column});
        }
      }
    }
  }
  std::sort(pairs.begin(), pairs.end());
  return pairs;
}

struct Token {
  int64_t document, position;
};

std::vector<Token> TokensOf(const TokenRuns& runs) {
  std::vector<Token> tokens;
  for (const TokenRun& run : runs) {
    for (int64_t i = 0; i < run.count; ++i) tokens.push_back({run.document, run.position + i});
  }
  return tokens;
}

std::vector<Pair> VisiblePairsOf(const AttentionMask& mask, const Layout& layout) {
  std::vector<Pair> pairs;
  int64_t query = 0;
  for (const Token& from : TokensOf(layout.queries)) {
    int64_t block = 0;
    for (const TokenRuns& runs : layout.blocks) {
      int64_t key = 0;
      for (const Token& to : TokensOf(runs)) {
        if (OracleIsVisible(mask, from.document, from.position, to.document, to.position)) {
          pairs.push_back({query, block, key});
        }
        ++key;
      }
      ++block;
    }
    ++query;
  }
  return pairs;
}

class AttentionPlanTest : public ::testing::TestWithParam<Order> {};

TEST_P(AttentionPlanTest, CoversEachVisiblePairExactlyOnce) {
  for (const AttentionMask& mask : kMasks) {
    for (const Layout& layout : kLayouts) {
      const AttentionPlan plan = PlanOf(mask, layout, GetParam());
      ASSERT_EQ(PlannedPairs(plan, TilesOf(plan, GetParam())), VisiblePairsOf(mask, layout));
    }
  }
}

// A tile may initialize sums only if no earlier tile had any of its rows, and if every row of the block has
// such a tile.
TEST_P(AttentionPlanTest, InitializesSumsOnlyInTheFirstTileOfARowOrKey) {
  for (const AttentionMask& mask : kMasks) {
    for (const Layout& layout : kLayouts) {
      const AttentionPlan plan = PlanOf(mask, layout, GetParam());
      std::vector<bool> row_touched(static_cast<size_t>(TokenCount(layout.queries)));
      std::vector<std::vector<bool>> key_touched;
      for (const TokenRuns& block : layout.blocks) key_touched.emplace_back(TokenCount(block));
      for (const AttentionTile& tile : TilesOf(plan, GetParam())) {
        for (int64_t row = tile.first_row; row < tile.first_row + tile.rows; ++row) {
          ASSERT_EQ(tile.initializes_rows,
                    plan.InitializesRows(tile.row_block) && !row_touched[static_cast<size_t>(row)]);
          row_touched[static_cast<size_t>(row)] = true;
        }
        std::vector<bool>& keys = key_touched[static_cast<size_t>(plan.BlockOf(tile))];
        for (int64_t key = tile.first_key; key < tile.first_key + tile.columns; ++key) {
          ASSERT_EQ(tile.initializes_keys,
                    plan.InitializesKeys(tile.key_tile) && !keys[static_cast<size_t>(key)]);
          keys[static_cast<size_t>(key)] = true;
        }
      }
      for (size_t row = 0; row < row_touched.size(); ++row) {
        ASSERT_TRUE(row_touched[row] || !plan.InitializesRows(static_cast<int64_t>(row) / 128));
      }
      for (size_t i = 0; i < plan.key_tiles().size(); ++i) {
        const KeyTile& tile = plan.key_tiles()[i];
        for (int64_t key = tile.first; key < tile.first + tile.count; ++key) {
          ASSERT_TRUE(key_touched[static_cast<size_t>(tile.block)][static_cast<size_t>(key)] ||
                      !plan.InitializesKeys(static_cast<int64_t>(i)));
        }
      }
    }
  }
}

TEST_P(AttentionPlanTest, SkipsMostPairsThatACausalMaskHides) {
  const TokenRuns tokens = WholeSequence(1024);
  const AttentionPlan plan({}, tokens, {&tokens}, {256, 512}, GetParam());
  int64_t computed = 0;
  for (const AttentionTile& tile : TilesOf(plan, GetParam())) computed += tile.rows * tile.columns;
  EXPECT_LE(static_cast<double>(computed), 1.1 * static_cast<double>(VisiblePairs({}, tokens, tokens)));
}

INSTANTIATE_TEST_SUITE_P(Orders, AttentionPlanTest, ::testing::Values(Order::kByRowBlock, Order::kByKeyTile));

TEST(TileSize, UsesHalfOfTheCache) {
  const auto columns = [](int64_t kibibytes) { return TileSizeFor(kibibytes * 1024).columns; };
  EXPECT_EQ(columns(0), 128);
  EXPECT_EQ(columns(512), 256);
  EXPECT_EQ(columns(1024), 512);
  EXPECT_EQ(columns(1280), 512);
  EXPECT_EQ(columns(16384), 512);
}

}  // namespace
}  // namespace weft::testing
