// Every scheme against attention by plain loops in double.
#include "context_parallel/schemes/attention_parallel.h"

#include <optional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/context_parallel/support/masks.h"
#include "tests/context_parallel/support/scheme_runner.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

void CheckOnThreads(const NodeMap& nodes, const std::vector<SolvedCase>& cases) {
  RunRanks(nodes, [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(SchemeRunner runner, SchemeRunner::Make(bootstrap));
    for (const SolvedCase& solved : cases) {
      for (const ContextScheme& scheme : SchemesFor(solved.attention.mask, bootstrap.size())) {
        WEFT_RETURN_IF_ERROR(runner.Check(scheme, solved).status());
      }
    }
    return absl::OkStatus();
  });
}

TEST(AttentionParallel, IsAttentionOfTheWholeSequenceOnOneToFourRanks) {
  for (const int ranks : {1, 2, 3, 4}) CheckOnThreads(NodeMap::OneNode(ranks), SweepFor(ranks));
}

TEST(AttentionParallel, IsTheSameBetweenNodes) {
  for (const int ranks : {2, 3, 4}) {
    std::vector<SolvedCase> cases;
    for (const std::vector<int64_t>& documents :
         {std::vector<int64_t>{int64_t{8} * ranks + 1}, {2}, {1, 9, 2, 3}}) {
      cases.emplace_back(AttentionCase{.mask = kCausal, .documents = documents});
    }
    cases.emplace_back(
        AttentionCase{.mask = {.causal = true, .keys_before = 3}, .documents = {int64_t{8} * ranks}});
    for (const NodeMap& nodes : NodeMapsOf(ranks)) CheckOnThreads(nodes, cases);
  }
}

TEST(AttentionParallel, TakesHeadsThatRanksDoNotDivide) {
  std::vector<SolvedCase> cases;
  for (const auto& [heads, kv_heads] : {std::pair<int64_t, int64_t>{7, 7}, {5, 1}, {2, 2}, {1, 1}, {12, 3}}) {
    cases.emplace_back(AttentionCase{
        .mask = kCausal,
        .documents = {21},
        .shape = {.batch = 1, .heads = heads, .kv_heads = kv_heads, .head_dim = 3, .value_dim = 5}});
  }
  for (const int ranks : {2, 3, 4}) CheckOnThreads(NodeMap::OneNode(ranks), cases);
}

TEST(AttentionParallel, DistinguishesTheLevelsOfAHybrid) {
  constexpr int kRanks = 6;
  AttentionCase attention{.mask = kCausal, .documents = {5, 22}};
  attention.shape.heads = 6;
  attention.shape.kv_heads = 3;
  const SolvedCase solved(attention);
  RunRanks(NodeMap::RanksPerNode(kRanks, 3), [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(SchemeRunner runner, SchemeRunner::Make(bootstrap));
    for (const int degree : {2, 3}) {
      for (const std::optional<RingRotation> rotation :
           {std::optional<RingRotation>(), {RingRotation::kShift}}) {
        const ContextScheme hybrid{
            .ulysses_degree = degree, .ring_rotation = rotation, .balance = LoadBalance::kHeadTail};
        WEFT_RETURN_IF_ERROR(runner.Check(hybrid, solved).status());
      }
    }
    return absl::OkStatus();
  });
}

TEST(AttentionParallel, TakesAnyScale) {
  CheckOnThreads(NodeMap::OneNode(4),
                 {SolvedCase(AttentionCase{.mask = kCausal, .documents = {24}, .scale = 1.7F})});
}

TEST(AttentionParallel, RoundsOnlyItsResultsIn16Bits) {
  std::vector<SolvedCase> cases;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const int64_t kv_heads : {4, 1}) {
      AttentionCase narrow{.mask = kCausal, .documents = {26}};
      narrow.shape.kv_heads = kv_heads;
      narrow.shape.dtype = dtype;
      cases.emplace_back(narrow);
    }
  }
  for (const int ranks : {1, 3, 4}) CheckOnThreads(NodeMap::OneNode(ranks), cases);
}

TEST(AttentionParallel, StagesTensorsOutsideNodeMemory) {
  for (const bool heads_first : {false, true}) {
    CheckOnThreads(
        NodeMap::OneNode(4),
        {SolvedCase(AttentionCase{
            .mask = kCausal, .documents = {5, 20}, .heads_first = heads_first, .in_node_memory = false})});
  }
}

// Schedules and transports change the order of messages, never the results.
TEST(AttentionParallel, GivesTheSameBitsForAnySliceSizeAndNodeMap) {
  constexpr int kRanks = 4;
  const SolvedCase solved(AttentionCase{.mask = kCausal, .documents = {7, 30}});
  const std::vector<ContextScheme> schemes = SchemesFor(kCausal, kRanks);
  std::vector<std::vector<std::vector<double>>> first(kRanks);  // [rank][scheme]
  for (const NodeMap& nodes : NodeMapsOf(kRanks)) {
    for (const int64_t slice_bytes : {256, 128 * 1024}) {
      RunRanks(nodes, [&](Bootstrap& bootstrap) -> absl::Status {
        EngineOptions options;
        options.slice_bytes = slice_bytes;
        WEFT_ASSIGN_OR_RETURN(SchemeRunner runner, SchemeRunner::Make(bootstrap, options));
        auto& known = first[static_cast<size_t>(bootstrap.rank())];
        for (size_t i = 0; i < schemes.size(); ++i) {
          WEFT_ASSIGN_OR_RETURN(const SchemeRunner::Outcome outcome, runner.Run(schemes[i], solved));
          std::vector<double> bits;
          for (const Tensor& tensor : {outcome.out, outcome.lse, outcome.dq, outcome.dk, outcome.dv}) {
            const std::vector<double> values = ToDoubleValues(tensor.view());
            bits.insert(bits.end(), values.begin(), values.end());
          }
          if (known.size() == i) known.push_back(bits);
          EXPECT_EQ(known[i], bits) << schemes[i].Describe(kRanks);
        }
        return absl::OkStatus();
      });
    }
  }
}

}  // namespace
}  // namespace weft::testing
