// Attention with a PairMask: an arbitrary mask for each row of the batch.
#include <memory>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/nn/attention/attention_case.h"
#include "tests/support/status_matchers.h"
#include "weft/nn/attention.h"
#include "weft/nn/attention_kernel.h"
#include "weft/nn/sparse/sparse_attention.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::shared_ptr<const PairMask> Share(PairMask mask) {
  return std::make_shared<const PairMask>(std::move(mask));
}

struct NamedPairs {
  const char* name;
  PairMask mask;
};

std::vector<NamedPairs> PairMasks() {
  return {
      {"all pairs", [](int64_t, int64_t, int64_t) { return true; }},
      {"no pair", [](int64_t, int64_t, int64_t) { return false; }},
      {"no pair of row 1", [](int64_t row, int64_t, int64_t) { return row != 1; }},
      {"documents of each row", [](int64_t row, int64_t query,
                                   int64_t key) { return query / (70 + 5 * row) == key / (70 + 5 * row); }},
      {"every third key",
       [](int64_t row, int64_t query, int64_t key) { return (query + key + row) % 3 == 0; }},
      {"one key", [](int64_t row, int64_t query, int64_t key) { return key == query / 2 + row; }}};
}

// Lengths on both sides of the borders of tiles and of their parts.
TEST(AttentionPairMask, AgreesWithPlainLoopsForEveryMask) {
  const std::vector<AttentionMask> masks = {{}, {false, std::nullopt}, {true, 20}};
  for (const AttentionMask& mask : masks) {
    for (const NamedPairs& pairs : PairMasks()) {
      for (const int64_t tokens : {1, 37, 64, 260, 530}) {
        AttentionCase c;
        c.mask = mask;
        c.batch = 3;
        c.heads = 2;
        c.kv_heads = 1;
        c.group = 2;
        c.head_dim = c.value_dim = 4;
        c.q_runs = WholeSequence(tokens);
        c.key_blocks = {WholeSequence(tokens)};
        c.pair_mask = Share(pairs.mask);
        CheckAttention(
            c, absl::StrCat(pairs.name, ", ", tokens, " tokens, ",
                            mask.causal ? "causal, keys before " : "full ", mask.keys_before.value_or(0)));
      }
    }
  }
}

TEST(AttentionPairMask, AgreesWithPlainLoopsForPartsOfASequence) {
  for (const NamedPairs& pairs : PairMasks()) {
    AttentionCase c;
    c.batch = 2;
    c.q_runs = {{0, 20, 33}, {0, 90, 41}};
    c.key_blocks = {{{0, 0, 20}, {0, 131, 9}}, {{0, 20, 33}, {0, 90, 41}}, {}, {{0, 53, 37}}};
    c.pair_mask = Share(pairs.mask);
    CheckAttention(c, pairs.name);
  }
}

TEST(AttentionPairMask, OfDocumentsGivesTheBitsOfTheDocuments) {
  AttentionCase documents;
  documents.q_runs = {{0, 0, 100}, {1, 0, 37}, {2, 0, 300}};
  documents.key_blocks = {documents.q_runs};
  AttentionCase masked = documents;
  masked.q_runs = WholeSequence(437);
  masked.key_blocks = {masked.q_runs};
  const auto document = [](int64_t position) { return position < 100 ? 0 : position < 137 ? 1 : 2; };
  masked.pair_mask =
      Share([document](int64_t, int64_t query, int64_t key) { return document(query) == document(key); });
  EXPECT_EQ(ResultsOf(masked), ResultsOf(documents));
}

TEST(AttentionPairMask, IsCalledOnlyForPairsThatTheMaskAllows) {
  AttentionCase c;
  c.q_runs = WholeSequence(50);
  c.key_blocks = {WholeSequence(50)};
  int64_t calls = 0;
  c.pair_mask = Share([&calls](int64_t, int64_t query, int64_t key) {
    EXPECT_LE(key, query);
    ++calls;
    return true;
  });
  ResultsOf(c);
  EXPECT_EQ(calls, 2 * 50 * 51 / 2);  // Forward and backward.
}

TEST(AttentionPairMask, IsNotCalledWithoutRowsOrTokens) {
  for (const auto& [batch, tokens] : {std::pair<int64_t, int64_t>{0, 5}, {2, 0}}) {
    AttentionCase c;
    c.batch = batch;
    c.q_runs = WholeSequence(tokens);
    c.key_blocks = {WholeSequence(tokens)};
    c.pair_mask = Share([](int64_t, int64_t, int64_t) {
      ADD_FAILURE() << "called";
      return true;
    });
    ResultsOf(c);
  }
}

TEST(AttentionPairMask, IsTakenFromTheInvocation) {
  Attention attention("attention");
  const Tensor q = TestTensor(DType::kF32, {1, 6, 1, 4}, 1);
  const Tensor k = TestTensor(DType::kF32, {1, 6, 1, 4}, 2);
  const Tensor v = TestTensor(DType::kF32, {1, 6, 1, 4}, 3);
  Invocation invocation(/*gradients=*/false);
  invocation.SetPairMask(Share([](int64_t, int64_t query, int64_t key) { return query == key; }));
  const absl::StatusOr<Tensors> outputs = attention.Forward(invocation, {q, k, v});
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_EQ(ToDoubleValues((*outputs)[0].view()), ToDoubleValues(v.view()));
}

// Positions in two documents would look alike to the function.
TEST(AttentionPairMask, IsAnErrorWithSeveralDocuments) {
  Attention attention("attention");
  const Tensor x = TestTensor(DType::kF32, {1, 6, 1, 4}, 1);
  const auto forward = [&](const TokenRuns& runs) {
    Invocation invocation(/*gradients=*/false);
    invocation.SetSequence(std::make_shared<const SequenceParts>(SequenceParts{{runs}, 0}));
    invocation.SetPairMask(Share([](int64_t, int64_t, int64_t) { return true; }));
    return attention.Forward(invocation, {x, x, x}).status();
  };
  EXPECT_THAT(forward({{0, 0, 4}, {1, 0, 2}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("attention"), HasSubstr("PairMask"), HasSubstr("one document"))));
  EXPECT_OK(forward({{0, 4, 2}, {0, 0, 4}, {1, 0, 0}}));
}

}  // namespace
}  // namespace weft::testing
