#include "weft/nn/attention_kernel.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/nn/attention/attention_case.h"
#include "tests/nn/gradient_check.h"
#include "weft/core/parallel.h"
#include "weft/core/strided_copy.h"

namespace weft::testing {
namespace {

struct NamedMask {
  const char* name;
  AttentionMask mask;
};

std::vector<NamedMask> Masks() {
  return {{"full", {false, std::nullopt}},
          {"causal", {true, std::nullopt}},
          {"1 key before", {true, 1}},
          {"7 keys before", {true, 7}},
          {"100 keys before", {true, 100}}};
}

struct NamedRuns {
  const char* name;
  TokenRuns q_runs;
  std::vector<TokenRuns> key_blocks;
};

std::vector<NamedRuns> Layouts() {
  return {
      {"one sequence", WholeSequence(37), {WholeSequence(37)}},
      {"the middle part", {{0, 20, 13}}, {{{0, 0, 20}}, {{0, 20, 13}}, {{0, 33, 7}}}},
      {"head and tail", {{0, 5, 5}, {0, 30, 6}}, {{{0, 0, 5}, {0, 36, 4}}, {{0, 5, 5}, {0, 30, 6}}}},
      {"keys after all queries", {{0, 3, 5}}, {{{0, 8, 9}}}},
      {"documents",
       {{7, 0, 3}, {8, 0, 11}, {9, 0, 1}, {10, 0, 9}},
       {{{7, 0, 3}, {8, 0, 11}, {9, 0, 1}, {10, 0, 9}}}},
      {"parts of documents",
       {{1, 4, 3}, {2, 0, 0}, {3, 9, 5}, {4, 0, 2}},
       {{{1, 0, 7}, {3, 0, 9}}, {{3, 9, 9}, {5, 0, 4}}, {}}},
      {"keys in another order", {{0, 10, 10}}, {{{0, 15, 5}, {0, 0, 10}, {0, 10, 5}}}},
      {"no queries", {}, {WholeSequence(5)}},
      {"no keys", WholeSequence(5), {}},
  };
}

TEST(AttentionKernel, AgreesWithPlainLoopsForEveryMaskAndLayoutOfTokens) {
  for (const NamedMask& mask : Masks()) {
    for (const NamedRuns& runs : Layouts()) {
      AttentionCase c;
      c.mask = mask.mask;
      c.q_runs = runs.q_runs;
      c.key_blocks = runs.key_blocks;
      CheckAttention(c, absl::StrCat(mask.name, ", ", runs.name));
      c.memory = Memory::kPartOfWider;
      c.batch = 2;
      c.heads = 6;
      c.group = 3;
      c.head_dim = 5;
      c.value_dim = 9;
      CheckAttention(c, absl::StrCat(mask.name, ", ", runs.name, ", grouped in wider memory"));
    }
  }
}

// Lengths and positions on both sides of the borders of tiles and of their parts, and windows that end inside
// a tile.
TEST(AttentionKernel, AgreesWithPlainLoopsAcrossTiles) {
  const std::vector<AttentionMask> masks = {{true, std::nullopt}, {true, 65}, {true, 300}};
  for (const AttentionMask& mask : masks) {
    AttentionCase c;
    c.mask = mask;
    c.heads = c.kv_heads = 1;
    c.head_dim = 3;
    c.value_dim = 2;
    for (const int64_t tokens : {63, 64, 65, 257, 520}) {
      c.q_runs = WholeSequence(tokens);
      c.key_blocks = {WholeSequence(tokens)};
      CheckAttention(c, absl::StrCat(tokens, " tokens, keys before ", mask.keys_before.value_or(0)));
    }
    c.q_runs = {{0, 100, 130}, {0, 700, 131}};
    c.key_blocks = {{{0, 0, 100}, {0, 831, 70}}, {{0, 230, 470}}, {{0, 100, 130}, {0, 700, 131}}};
    CheckAttention(c, absl::StrCat("head and tail, keys before ", mask.keys_before.value_or(0)));
  }
}

TEST(AttentionKernel, AgreesWithPlainLoopsForPacksOfManyDocuments) {
  AttentionCase c;
  c.heads = 2;
  c.kv_heads = 1;
  c.group = 2;
  c.head_dim = c.value_dim = 4;
  for (int64_t document = 0; document < 40; ++document)
    c.q_runs.push_back({document, 0, 1 + document * 7 % 31});
  c.key_blocks = {c.q_runs};
  CheckAttention(c, "whole documents");
  c.mask.causal = false;
  CheckAttention(c, "whole documents, full");
  for (TokenRun& run : c.q_runs) {
    run.position = run.count / 2;
    run.count -= run.position;
  }
  c.mask.causal = true;
  CheckAttention(c, "second halves of documents");
}

// A rank with query heads 2 to 5 of groups of three reads kv heads 0 and 1.
TEST(AttentionKernel, AcceptsHeadsFromTheMiddleOfAGroup) {
  AttentionCase c;
  c.q_runs = WholeSequence(9);
  c.key_blocks = {WholeSequence(9)};
  c.heads = 4;
  c.group = 3;
  c.head_offset = 2;
  CheckAttention(c, "the last head of one group and all heads of the next");
  c.kv_heads = 3;
  CheckAttention(c, "with a kv head that no query head reads");
  c.heads = 0;
  CheckAttention(c, "no query heads");
}

TEST(AttentionKernel, AcceptsAnyStrides) {
  for (const Memory memory : {Memory::kDense, Memory::kHeadsFirst, Memory::kPartOfWider}) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      AttentionCase c;
      c.q_runs = WholeSequence(70);
      c.key_blocks = {WholeSequence(70)};
      c.batch = 2;
      c.heads = 6;
      c.kv_heads = 3;
      c.group = 2;
      c.head_dim = 12;
      c.value_dim = 7;
      c.memory = memory;
      c.dtype = dtype;
      CheckAttention(c, absl::StrCat("memory ", static_cast<int>(memory), " ", std::string(Name(dtype))),
                     dtype == DType::kF32    ? 1e-5
                     : dtype == DType::kBF16 ? 0x1p-7
                                             : 0x1p-10);
    }
  }
}

TEST(AttentionKernel, RoundsResultsToTheDtypeOfTheQueries) {
  AttentionCase c;
  c.q_runs = WholeSequence(33);
  c.key_blocks = {WholeSequence(33)};
  c.dtype = DType::kBF16;
  KernelRun wide(c);
  wide.Forward(c.q_runs);
  wide.Backward(c.q_runs);
  KernelRun narrow(c);
  const auto make = [&narrow](const Shape& shape) {
    narrow.keep.push_back(Tensor::Empty(DType::kBF16, shape));
    return narrow.keep.back().view();
  };
  narrow.out = make(wide.out.shape);
  narrow.Forward(c.q_runs);
  EXPECT_EQ(ToDoubleValues(narrow.lse), ToDoubleValues(wide.lse));
  ExpectNear(ToDoubleValues(narrow.out), ToDoubleValues(wide.out), 0x1p-8, "out");
  narrow.out = wide.out;
  narrow.dq = make(wide.dq.shape);
  narrow.gradients = {{make(wide.gradients[0].dk.shape), make(wide.gradients[0].dv.shape)}};
  narrow.Backward(c.q_runs);
  const auto expect_rounded = [](const TensorView& rounded, const TensorView& values) {
    std::vector<double> expected = ToDoubleValues(values);
    for (double& value : expected) value = ToFloat(ToBF16(static_cast<float>(value)));
    EXPECT_EQ(ToDoubleValues(rounded), expected);
  };
  expect_rounded(narrow.dq, wide.dq);
  expect_rounded(narrow.gradients[0].dk, wide.gradients[0].dk);
  expect_rounded(narrow.gradients[0].dv, wide.gradients[0].dv);
}

TEST(AttentionKernel, AddsBetaTimesTheOldValuesOfItsTargets) {
  for (const int64_t group : {1, 2}) {
    for (const float beta : {1.0F, -0.5F}) {
      AttentionCase c;
      c.q_runs = {{0, 2, 70}, {0, 90, 5}};
      c.key_blocks = {{{0, 0, 80}}, {{0, 89, 6}}, {{0, 200, 3}}};
      c.heads = 2;
      c.kv_heads = 2 / group;
      c.group = group;
      KernelRun run(c);
      ExpectedAttention expected(c, run);
      const auto add = [beta](std::vector<double>& target, const std::vector<double>& old, double factor) {
        for (size_t i = 0; i < target.size(); ++i) target[i] += static_cast<double>(beta) * factor * old[i];
      };
      add(expected.gradients.dq, ToDoubleValues(run.dq), 2.0);
      add(expected.gradients.dk, Joined(run.gradients, &KeyGradients::dk, 1), 1.0);
      add(expected.gradients.dv, Joined(run.gradients, &KeyGradients::dv, 1), 1.0);
      run.Forward(c.q_runs);
      run.Backward(c.q_runs, 2.0F * beta, beta);
      ExpectGradients(c, run, expected.gradients, 2e-5);
    }
  }
}

// The order of ring attention: dq is summed over the calls, and each call gives dk and dv of one block.
TEST(AttentionKernel, GivesTheSameGradientsBlockByBlock) {
  AttentionCase c;
  c.q_runs = {{0, 30, 20}};
  c.key_blocks = {{{0, 30, 20}}, {{0, 0, 30}}, {{0, 50, 20}}};
  KernelRun run(c);
  const ExpectedAttention expected(c, run);
  run.Forward(c.q_runs);
  AttentionDelta(run.out, run.dout, run.delta);
  for (size_t i = 0; i < run.keys.size(); ++i) {
    AttentionBackward(run.problem, run.q, c.q_runs, {run.keys[i]}, run.BackwardInputs(),
                      {.dq = run.dq, .dq_beta = i == 0 ? 0.0F : 1.0F, .keys = {run.gradients[i]}});
  }
  ExpectGradients(c, run, expected.gradients, 2e-5);
}

TEST(AttentionKernel, GivesTheSameBitsOnAnyNumberOfThreads) {
  AttentionCase c;
  c.q_runs = WholeSequence(600);
  c.key_blocks = {WholeSequence(600)};
  c.heads = 4;
  c.group = 2;
  const int threads = ThreadCount();
  const auto results = [&c](int count) {
    SetThreadCount(count);
    return ResultsOf(c);
  };
  const std::vector<double> one = results(1);
  EXPECT_EQ(results(2), one);
  EXPECT_EQ(results(3), one);
  SetThreadCount(threads);
}

}  // namespace
}  // namespace weft::testing
