// Random schedules of the whole engine on simulated ranks. Also checks that schedules fail when a rule is
// broken.
#include <algorithm>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/random_programs/random_program.h"
#include "tests/support/schedule_count.h"
#include "tests/support/status_matchers.h"
#include "weft/core/status.h"

namespace weft::testing {
namespace {

using ::testing::ContainsRegex;

// A long polling interval, for runs in which ranks mostly wait for each other.
constexpr int64_t kCoarsePollNs = 4'000;

std::string RepeatCommand(uint64_t seed) {
  return absl::StrCat("repeat with: build/release/tests/comm/weft_hunt --seeds ", seed, ":", seed + 1);
}

TEST(Schedules, EndWithTheRightBitsOnEveryRank) {
  const uint64_t seeds = ScheduleCount(400);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    const Program program = DrawProgram(seed);
    EXPECT_OK(RunSchedule(program, DrawMachine(seed)).status()) << program.ToString() << "\n"
                                                                << RepeatCommand(seed);
  }
}

// Ranks of a node are consecutive, each rank is on the node after that of the one before it, or neither.
TEST(Schedules, HaveNodesOfConsecutiveCyclicAndScatteredRanks) {
  constexpr int kSeeds = 400;
  int consecutive = 0, cyclic = 0, scattered = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const NodeMap nodes = DrawProgram(seed).nodes;
    const std::vector<int>& node_of_rank = nodes.node_of_rank;
    bool is_cyclic = true;
    int known = 0;  // Nodes of the ranks so far.
    for (int rank = 0; rank < nodes.size(); ++rank) {
      const int node = node_of_rank[static_cast<size_t>(rank)];
      is_cyclic &= node == rank % nodes.node_count();
      EXPECT_LE(node, known) << "seed " << seed;
      known = std::max(known, node + 1);
    }
    if (std::is_sorted(node_of_rank.begin(), node_of_rank.end())) {
      ++consecutive;
    } else {
      ++(is_cyclic ? cyclic : scattered);
    }
  }
  EXPECT_GT(consecutive, kSeeds / 4);
  EXPECT_GT(cyclic, kSeeds / 10);
  EXPECT_GT(scattered, kSeeds / 10);
}

TEST(Schedule, IsDeterministic) {
  const Program program = DrawProgram(11);
  const ScheduleReport first = RunSchedule(program, DrawMachine(11));
  const ScheduleReport again = RunSchedule(program, DrawMachine(11));
  EXPECT_OK(first.status());
  EXPECT_EQ(first.simulation.fingerprint, again.simulation.fingerprint);
}

TEST(Schedule, WorksForAThousandRanks) {
  Program program = DrawProgram(3);
  constexpr int kRanksPerNode = 8;
  program.nodes = NodeMap::RanksPerNode(LargeWorld(), kRanksPerNode);
  program.shard_size = 64;
  program.engine = {};
  program.ops.resize(4);
  program.ops[0].kind = program.ops[2].kind = ProgramOp::Kind::kGatherImage;
  program.ops[1].kind = program.ops[3].kind = ProgramOp::Kind::kReduceGradients;
  for (ProgramOp& op : program.ops) {
    op.count = std::min<int64_t>(op.count, 31);
    op.whole_world = false;  // A rank communicates only with its shard and replicate groups, as in training.
  }
  const ScheduleReport report = RunSchedule(program, {.poll_ns = kCoarsePollNs});
  EXPECT_OK(report.status());
}

// With a short timeout, so that ranks do not wait long for a rank that has failed.
Program DrawProgramWithShortTimeout(uint64_t seed) {
  Program program = DrawProgram(seed);
  program.engine.timeout = absl::Seconds(1);
  return program;
}

// Succeeds if one of the first schedules fails on some rank while a rule is broken, but not with that rule.
// `run(seed, holds)` runs a schedule; the rule holds or is broken.
template <typename Run>
::testing::AssertionResult IsDetected(const Run& run) {
  constexpr uint64_t kSeeds = 300;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    if (run(seed, false).status().ok()) continue;
    const absl::Status intact = run(seed, true).status();
    if (intact.ok()) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "schedule " << seed << " fails with the rule, too: " << intact;
  }
  return ::testing::AssertionFailure() << "none of " << kSeeds << " schedules failed";
}

TEST(BrokenRule, AHeadOperationWithoutCreditIsDetected) {
  EXPECT_TRUE(IsDetected([](uint64_t seed, bool holds) {
    ProgramRules rules;
    rules.credit_rules.head_always_has_credit = holds;
    return RunSchedule(DrawProgramWithShortTimeout(seed), {.seed = seed}, rules);
  }));
}

TEST(BrokenRule, AStagedPieceOverwrittenBeforeItIsReadIsDetected) {
  EXPECT_TRUE(IsDetected([](uint64_t seed, bool holds) {
    Program program = DrawProgramWithShortTimeout(seed);
    for (ProgramOp& op : program.ops) op.kind = ProgramOp::Kind::kMessages;
    ProgramRules rules;
    rules.credit_rules.staged_pieces_await_receiver = holds;
    return RunSchedule(program, {.seed = seed}, rules);
  }));
}

TEST(BrokenRule, SlicesThatRunAheadOfASilentPeerWithoutBoundAreDetected) {
  EXPECT_TRUE(IsDetected([](uint64_t seed, bool holds) {
    ProgramRules rules;
    rules.credit_rules.slices_run_ahead_in_half_of_budget = holds;
    return RunSchedule(DrawProgramWithShortTimeout(seed), {.seed = seed}, rules);
  }));
}

// Reductions of many slices between nodes of one rank each, on links that fill the rings.
TEST(BrokenRule, ARunThatOverwritesSlicesOfItsRingIsDetected) {
  EXPECT_TRUE(IsDetected([](uint64_t seed, bool holds) {
    Program program = DrawProgramWithShortTimeout(seed);
    program.nodes = NodeMap::RanksPerNode(2, 1);
    program.engine.share_domain = ShareDomain::kNode;
    program.shard_size = 2;
    program.engine.slice_bytes = 64;
    program.engine.max_budget_bytes = program.engine.slice_bytes * 192;
    program.engine.max_run_bytes = program.engine.slice_bytes * 8;
    for (ProgramOp& op : program.ops) {
      op.kind = ProgramOp::Kind::kReduceGradients;
      op.count = 20'000;
      op.in_ranges = false;
      op.wire_compression = WireCompression::kNone;
    }
    ProgramRules rules;
    rules.credit_rules.runs_await_their_slots = holds;
    return RunSchedule(program, {.seed = seed}, rules);
  }));
}

TEST(BrokenRule, MemoryReusedBeforeItIsReleasedIsDetected) {
  EXPECT_TRUE(IsDetected([](uint64_t seed, bool holds) {
    return RunSchedule(DrawProgramWithShortTimeout(seed), {.seed = seed}, {.free_after_release = holds});
  }));
}

TEST(BrokenRule, AnAllReduceSubmittedOnCompletionIsDetected) {
  EXPECT_TRUE(IsDetected([](uint64_t seed, bool holds) {
    return RunSchedule(DrawProgramWithShortTimeout(seed), {.seed = seed}, {.submit_in_program_order = holds});
  }));
}

TEST(BrokenRule, AnImageWrittenWithoutItsGateIsDetected) {
  EXPECT_TRUE(IsDetected([](uint64_t seed, bool holds) {
    // Two lanes alternately fill one image, and one rank reads it slowly.
    Program program = DrawProgramWithShortTimeout(seed);
    for (size_t i = 0; i < program.ops.size(); ++i) {
      program.ops[i].kind = ProgramOp::Kind::kGatherImage;
      program.ops[i].image = 0;
      program.ops[i].whole_world = i % 2 == 0;
    }
    return RunSchedule(program, {.seed = seed, .slow = {{0, 10.0}}}, {.gate_images = holds});
  }));
}

TEST(BrokenRule, ABarrierThatDoesNotAwaitItsTreeIsDetected) {
  EXPECT_TRUE(IsDetected([](uint64_t seed, bool holds) {
    Program program = DrawProgramWithShortTimeout(seed);
    for (ProgramOp& op : program.ops) op.kind = ProgramOp::Kind::kBarrier;
    ProgramRules rules;
    rules.credit_rules.partials_await_children = holds;
    return RunSchedule(program, {.seed = seed}, rules);
  }));
}

// Gathers and reductions between nodes of one rank each.
TEST(BrokenRule, ARelayedMessageSentBeforeThoseOfEarlierRoundsIsDetected) {
  for (const auto kind :
       {ProgramOp::Kind::kGatherImage, ProgramOp::Kind::kReduceGradients, ProgramOp::Kind::kAllReduce}) {
    EXPECT_TRUE(IsDetected([kind](uint64_t seed, bool holds) {
      Program program = DrawProgramWithShortTimeout(seed);
      program.nodes = NodeMap::RanksPerNode(8, 1);
      program.engine.share_domain = ShareDomain::kNode;
      program.engine.relaying = Relaying::kAlways;
      program.shard_size = 8;
      for (ProgramOp& op : program.ops) {
        op.kind = kind;
        op.in_ranges = false;
        if (kind == ProgramOp::Kind::kAllReduce) op.count = 600;  // Too large for the tree.
      }
      ProgramRules rules;
      rules.credit_rules.rounds_await_earlier_ones = holds;
      return RunSchedule(program, {.seed = seed}, rules);
    }));
  }
}

// Reductions on nodes of several share domains, in rings of a few slices.
Program DrawDomainReductions(uint64_t seed) {
  Program program = DrawProgramWithShortTimeout(seed);
  program.engine.share_domain = ShareDomain::kNuma;
  for (ProgramOp& op : program.ops) {
    op.kind = ProgramOp::Kind::kReduceGradients;
    op.count = 600;
    op.node_memory = true;
    op.whole_world = true;
  }
  return program;
}

TEST(BrokenRule, ADomainSumOverwrittenBeforeItIsReadIsDetected) {
  EXPECT_TRUE(IsDetected([](uint64_t seed, bool holds) {
    ProgramRules rules;
    rules.credit_rules.domain_rings_await_reader = holds;
    return RunSchedule(DrawDomainReductions(seed), {.seed = seed}, rules);
  }));
}

TEST(BrokenRule, ADomainSumReadBeforeItIsWrittenIsDetected) {
  EXPECT_TRUE(IsDetected([](uint64_t seed, bool holds) {
    ProgramRules rules;
    rules.credit_rules.domain_readers_await_sums = holds;
    return RunSchedule(DrawDomainReductions(seed), {.seed = seed}, rules);
  }));
}

// One rank submits another operation than all others. Its error must reach nodes that are no neighbors of its
// own long before their deadline.
ScheduleReport RunMistakeOnManyNodes(uint64_t seed, bool failures_are_relayed) {
  constexpr int kNodes = 32;
  Program program = DrawProgram(seed);
  program.nodes = NodeMap::RanksPerNode(kNodes, 1);
  program.engine.share_domain = ShareDomain::kNode;
  program.shard_size = 1;
  program.engine.timeout = absl::Seconds(30);
  for (ProgramOp& op : program.ops) {
    op.kind = ProgramOp::Kind::kAllReduce;
    op.count = 1;
  }
  const ProgramMistake mistake = {ProgramMistake::Kind::kOp, static_cast<int>(seed % kNodes)};
  ProgramRules rules;
  rules.credit_rules.failures_are_relayed = failures_are_relayed;
  return RunSchedule(program, {.seed = seed, .poll_ns = kCoarsePollNs}, rules, &mistake);
}

TEST(BrokenRule, AFailureThatIsNotRelayedIsDetected) {
  constexpr int64_t kSoonNs = 10'000'000'000;
  bool is_detected = false;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const SimReport relayed = RunMistakeOnManyNodes(seed, /*failures_are_relayed=*/true).simulation;
    EXPECT_FALSE(relayed.status().ok()) << "seed " << seed;
    EXPECT_LT(relayed.virtual_ns, kSoonNs) << "seed " << seed;
    if (is_detected) break;
    is_detected =
        RunMistakeOnManyNodes(seed, /*failures_are_relayed=*/false).simulation.virtual_ns >= kSoonNs;
  }
  EXPECT_TRUE(is_detected);
}

// A rank dies during the run. The final operations need all ranks, so the error of every survivor names it.
TEST(DeadRank, IsNamedByTheErrorOfEverySurvivor) {
  const uint64_t seeds = ScheduleCount(30);
  uint64_t detected = 0;
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    Program program = DrawProgram(seed);
    program.engine.timeout = absl::Seconds(1);
    ProgramOp last = program.ops.front();
    last.kind = ProgramOp::Kind::kGatherImage;
    last.whole_world = true;
    last.count = 64;
    // The last of these six operations starts in the last sixth of the run, which is after the death.
    program.ops.insert(program.ops.end(), 6, last);
    SimOptions machine;
    machine.seed = seed;
    machine.poll_ns = kCoarsePollNs;
    const int64_t whole_ns = RunSchedule(program, machine).simulation.virtual_ns;
    const int victim = static_cast<int>(seed) % program.nodes.size();
    machine.death = {{victim, whole_ns * static_cast<int64_t>(seed % 10 + 1) / 12}};
    const SimReport report = RunSchedule(program, machine).simulation;
    if (absl::IsUnavailable(report.outcomes[static_cast<size_t>(victim)])) {
      ++detected;
      for (size_t rank = 0; rank < report.outcomes.size(); ++rank) {
        const absl::Status& outcome = report.outcomes[rank];
        if (static_cast<int>(rank) == victim) continue;
        EXPECT_FALSE(outcome.ok()) << program.ToString() << ", rank " << rank;
        EXPECT_THAT(std::string(outcome.message()),
                    ContainsRegex(absl::StrCat("(heartbeat from|waits for|all-gather of blobs:) rank.*[^0-9]",
                                               victim, "([^0-9]|$)")))
            << program.ToString() << ", rank " << rank;
      }
    }
  }
  EXPECT_GT(detected, seeds / 2);
}

class Mistakes : public ::testing::TestWithParam<ProgramMistake::Kind> {};

// One rank deviates from the program. All ranks fail, and some error names that rank.
TEST_P(Mistakes, NameTheDeviatingRank) {
  const uint64_t seeds = ScheduleCount(40);
  uint64_t detected = 0;
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    Program program = DrawProgram(seed);
    // Every mistake applies to an all-reduce.
    for (ProgramOp& op : program.ops) op.kind = ProgramOp::Kind::kAllReduce;
    const int culprit = static_cast<int>(seed) % program.nodes.size();
    const ProgramMistake mistake = {GetParam(), culprit};
    const SimReport report =
        RunSchedule(program, {.seed = seed, .poll_ns = kCoarsePollNs}, {}, &mistake).simulation;
    for (const absl::Status& outcome : report.outcomes) EXPECT_FALSE(outcome.ok()) << program.ToString();
    const bool named = std::any_of(report.outcomes.begin(), report.outcomes.end(), [&](const auto& outcome) {
      return absl::IsFailedPrecondition(outcome) &&
             ::testing::Matches(ContainsRegex(absl::StrCat("rank ", culprit, "[^0-9]")))(
                 std::string(outcome.message()));
    });
    if (named) ++detected;
  }
  EXPECT_EQ(detected, seeds);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Mistakes,
                         ::testing::Values(ProgramMistake::Kind::kOp, ProgramMistake::Kind::kCount,
                                           ProgramMistake::Kind::kDType, ProgramMistake::Kind::kOrder));

}  // namespace
}  // namespace weft::testing
