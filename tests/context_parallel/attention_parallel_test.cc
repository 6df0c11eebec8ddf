// Every scheme against plain loops in double.
#include "weft/context_parallel/attention_parallel.h"

#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/context_parallel/scheme_runner.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

constexpr AttentionMask kCausal{};
constexpr AttentionMask kFull{.causal = false, .window = {}};
constexpr AttentionMask kWindow{.causal = true, .window = 3};

struct Heads {
  int64_t heads, kv_heads;
};
constexpr Heads kMha{4, 4};
constexpr Heads kGqa{6, 2};
constexpr Heads kMqa{4, 1};

// Lengths that divide and that do not, one that leaves ranks empty, and packs of documents.
std::vector<std::vector<int64_t>> PacksFor(int ranks) {
  return {{int64_t{8} * ranks}, {int64_t{6} * ranks + 1}, {2}, {1, 9, 2, 3}};
}

std::vector<SolvedCase> SweepFor(int ranks) {
  std::vector<SolvedCase> sweep;
  for (const AttentionMask& mask : {kCausal, kFull, kWindow}) {
    for (const auto& documents : PacksFor(ranks)) {
      for (const Heads& heads : {kMha, kGqa, kMqa}) {
        sweep.emplace_back(AttentionCase{.mask = mask,
                                         .documents = documents,
                                         .shape = {.batch = 2,
                                                   .heads = heads.heads,
                                                   .kv_heads = heads.kv_heads,
                                                   .head_dim = 4,
                                                   .value_dim = heads.kv_heads == 2 ? 6 : 4},
                                         .heads_first = heads.kv_heads == 1});
      }
    }
  }
  return sweep;
}

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
    for (const auto& documents : PacksFor(ranks)) {
      cases.emplace_back(AttentionCase{.mask = kCausal, .documents = documents});
    }
    cases.emplace_back(AttentionCase{.mask = kWindow, .documents = {int64_t{8} * ranks}});
    for (const NodeMap& nodes : NodeMapsOf(ranks)) CheckOnThreads(nodes, cases);
  }
}

}  // namespace
}  // namespace weft::testing
