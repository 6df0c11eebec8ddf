// Gradient accumulation over several microbatches, in every form of Note [Accumulation].
#include <cmath>
#include <map>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/group_fixture.h"
#include "tests/sharding/support/status_codes.h"
#include "tests/support/thread_ranks.h"
#include "weft/core/hash.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int kGroups = 3;
constexpr int kMicrobatches = 3;

// Reduction of the microbatches before the last one: none, over the shard group, or over all ranks.
enum class Form : uint8_t { kLast, kReduceScatter, kEach };
constexpr Form kForms[] = {Form::kLast, Form::kReduceScatter, Form::kEach};

struct Mesh {
  int replicas;
  int shards;
};
constexpr Mesh kMeshes[] = {{1, 1}, {1, 2}, {2, 1}, {1, 3}, {2, 2}, {1, 4}};

using Groups = std::vector<std::unique_ptr<ParamGroup>>;
// The gradient of one element, by rank, microbatch, group and element.
using Gradient = std::function<float(int rank, int microbatch, int group, int64_t element)>;

absl::StatusOr<Groups> MakeGroups(const GroupFixture& fixture, const ShardingPolicy& policy) {
  Groups groups;
  for (int g = 0; g < kGroups; ++g) {
    const auto parameters = MakeParameters({{5 + g, 7}, {3}, {0}});
    WEFT_ASSIGN_OR_RETURN(groups.emplace_back(), fixture.Group(parameters, policy, absl::StrCat("g", g)));
  }
  return groups;
}

absl::Status WriteGradients(ParamGroup& group, int index, int rank, int microbatch,
                            const Gradient& gradient) {
  WEFT_RETURN_IF_ERROR(group.PrepareGradients());
  for (const auto& parameter : group.parameters()) {
    std::vector<float> values(static_cast<size_t>(parameter->elements()));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = gradient(rank, microbatch, index, static_cast<int64_t>(i));
    }
    AddGradient(*parameter, values);
  }
  return absl::OkStatus();
}

// Runs one step: every group in each microbatch, as backward does. `finish`: calls FinishBackward after each
// microbatch, not only after the last one.
absl::Status RunStep(const GroupFixture& fixture, Groups& groups, Form form, bool finish,
                     const Gradient& gradient) {
  const int rank = fixture.engine.engine->bootstrap().rank();
  for (int microbatch = 0; microbatch < kMicrobatches; ++microbatch) {
    const bool last = microbatch + 1 == kMicrobatches;
    for (int g = 0; g < kGroups; ++g) {
      ParamGroup& group = *groups[static_cast<size_t>(g)];
      WEFT_RETURN_IF_ERROR(WriteGradients(group, g, rank, microbatch, gradient));
      if (form == Form::kLast && !last) continue;
      const bool replicate = last || form == Form::kEach;
      WEFT_RETURN_IF_ERROR(
          group.ReduceGradients(replicate ? ReduceScope::kShardAndReplicate : ReduceScope::kShard));
    }
    if (finish || last) WEFT_RETURN_IF_ERROR(fixture.context->FinishBackward());
  }
  return absl::OkStatus();
}

std::string Describe(Form form, const ShardingPolicy& policy, const CommContext::Options& bounds) {
  return absl::StrCat("form ", static_cast<int>(form), ", layout ", ToAbsl(Name(policy.layout)),
                      ", in flight ", bounds.bounds.max_reduce_scatters, " and ",
                      bounds.bounds.max_all_reduces);
}

// Small powers of two: no sum rounds, and a sum shows which microbatches of which ranks it has.
float Exact(int rank, int microbatch, int group, int64_t element) {
  return std::ldexp(static_cast<float>(1 + (element + group) % 3), 2 * (microbatch * 4 + rank) - 12);
}
// Values whose sums round, so that a sum depends on the order of its additions.
float Rounding(int rank, int microbatch, int group, int64_t element) {
  const uint64_t bits =
      Hash64(absl::StrCat(rank, ".", microbatch, ".", group), static_cast<uint64_t>(element));
  return static_cast<float>(bits % 100003) / 99991.0F - 0.5F;
}

TEST(Accumulation, SumsEveryMicrobatchWithExactlyTheCollectivesOfItsForm) {
  for (const Mesh& mesh : kMeshes) {
    const int ranks = mesh.replicas * mesh.shards;
    RunRanks(NodeMap::OneNode(ranks), [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap, mesh.replicas));
      for (const ShardingPolicy& policy : PolicyOfEachLayout()) {
        for (const Form form : kForms) {
          SCOPED_TRACE(Describe(form, policy, {}));
          WEFT_ASSIGN_OR_RETURN(Groups groups, MakeGroups(fixture, policy));
          const ShardingCounters before = fixture.context->state().counters();
          WEFT_RETURN_IF_ERROR(RunStep(fixture, groups, form, true, Exact));
          const ShardingCounters after = fixture.context->state().counters();
          const int scatters = form == Form::kLast ? kGroups : kGroups * kMicrobatches;
          const int replications = form == Form::kEach ? kGroups * kMicrobatches : kGroups;
          EXPECT_EQ(after.reduce_scatters - before.reduce_scatters, mesh.shards > 1 ? scatters : 0);
          EXPECT_EQ(after.all_reduces - before.all_reduces, mesh.replicas > 1 ? replications : 0);
          for (int g = 0; g < kGroups; ++g) {
            for (const ShardView& shard : groups[static_cast<size_t>(g)]->Shards()) {
              for (int64_t i = 0; i < shard.elements(); ++i) {
                float expected = 0.0F;
                for (int rank = 0; rank < ranks; ++rank) {
                  for (int m = 0; m < kMicrobatches; ++m)
                    expected += Exact(rank, m, g, shard.piece.start + i);
                }
                EXPECT_EQ(shard.grad[i], expected);
              }
            }
          }
        }
      }
      return absl::OkStatus();
    });
  }
}

TEST(Accumulation, GivesTheSameBitsForEveryScheduleOfAForm) {
  const std::vector<std::pair<int, int>> bounds = {{0, 1}, {1, 1}, {2, 2}, {3, 1}, {1, 3}};
  for (const Form form : kForms) {
    std::map<uint64_t, std::string> seen;
    std::mutex mutex;
    for (const NodeMap& nodes : NodeMapsOf(4)) {
      for (const auto& [scatters, replications] : bounds) {
        RunRanks(nodes, [&, scatters = scatters, replications = replications](Bootstrap& bootstrap) {
          const CommContext::Options options{.bounds = {scatters, replications}};
          WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap, 2, options));
          for (const ShardingPolicy& policy : PolicyOfEachLayout()) {
            for (const bool finish : {true, false}) {
              WEFT_ASSIGN_OR_RETURN(Groups groups, MakeGroups(fixture, policy));
              WEFT_RETURN_IF_ERROR(RunStep(fixture, groups, form, finish, Rounding));
              // A rank's elements depend on the layout. The sum of the hashes of all elements does not.
              int64_t hash = 0;
              for (const auto& group : groups) {
                for (const ShardView& shard : group->Shards()) {
                  for (int64_t i = 0; i < shard.elements(); ++i) {
                    const std::string place =
                        absl::StrCat(group->name(), shard.parameter->name, shard.piece.start + i);
                    hash += static_cast<int64_t>(Hash64(place, std::bit_cast<uint32_t>(shard.grad[i])) >> 8);
                  }
                }
              }
              WEFT_RETURN_IF_ERROR(
                  fixture.context->lanes().AllReduceScalars("hash", &hash, DType::kI64, 1, ReduceOp::kSum));
              const std::lock_guard lock(mutex);
              seen.emplace(static_cast<uint64_t>(hash), Describe(form, policy, options));
            }
          }
          return absl::OkStatus();
        });
      }
    }
    EXPECT_THAT(seen, SizeIs(1));
  }
}

TEST(Accumulation, KeepsReducedAndPartialSumsApart) {
  RunRanks(NodeMap::RanksPerNode(4, 2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap, 2));
    for (const ShardingPolicy& policy : PolicyOfEachLayout()) {
      WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(MakeParameters({{40}}), policy));
      const auto reduce = [&](float value, ReduceScope scope) -> absl::Status {
        WEFT_RETURN_IF_ERROR(group->PrepareGradients());
        AddGradient(*group->parameters()[0], std::vector<float>(40, value));
        return group->ReduceGradients(scope);
      };
      // A partial sum after a reduced one must not reduce that one over the replicas again.
      WEFT_RETURN_IF_ERROR(reduce(1, ReduceScope::kShardAndReplicate));
      WEFT_RETURN_IF_ERROR(reduce(10, ReduceScope::kShard));
      WEFT_RETURN_IF_ERROR(reduce(100, ReduceScope::kShard));
      WEFT_RETURN_IF_ERROR(reduce(1000, ReduceScope::kShardAndReplicate));
      WEFT_RETURN_IF_ERROR(reduce(10000, ReduceScope::kShardAndReplicate));
      WEFT_RETURN_IF_ERROR(fixture.context->FinishBackward());
      for (const ShardView& shard : group->Shards()) {
        EXPECT_THAT(absl::MakeConstSpan(shard.grad, static_cast<size_t>(shard.elements())), Each(44444.0F));
      }
    }
    return absl::OkStatus();
  });
}

TEST(Accumulation, WithholdsGradientsThatAreNotFullyReducedAndSaysWhy) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(MakeParameters({{40}})));
    const auto expect_withheld = [&group](const char* reason, const char* remedy) {
      EXPECT_THAT(group->CheckGradientsReduced(),
                  StatusIs(kPrecondition, AllOf(HasSubstr("'group'"), HasSubstr(reason), HasSubstr(remedy))));
      for (const ShardView& shard : group->Shards()) EXPECT_EQ(shard.grad, nullptr);
    };
    expect_withheld("no reduced gradients", "run backward");
    WEFT_RETURN_IF_ERROR(group->PrepareGradients());
    expect_withheld("unreduced gradients", "gradient sync on");
    WEFT_RETURN_IF_ERROR(group->ReduceGradients(ReduceScope::kShard));
    expect_withheld("under way", "SetIsLastBackward");
    WEFT_RETURN_IF_ERROR(fixture.context->FinishBackward());
    expect_withheld("over its shard group only", "SetRequiresAllReduce");
    WEFT_RETURN_IF_ERROR(group->PrepareGradients());
    WEFT_RETURN_IF_ERROR(group->ReduceGradients());
    WEFT_RETURN_IF_ERROR(fixture.context->FinishBackward());
    EXPECT_TRUE(group->has_reduced_gradients());
    group->ZeroGradients();
    expect_withheld("no reduced gradients", "run backward");
    return absl::OkStatus();
  });
}

TEST(Accumulation, ForgetsReductionsUnderWayWhenGradientsAreZeroed) {
  RunRanks(NodeMap::OneNode(4), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap, 2));
    WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(MakeParameters({{40}})));
    for (const float value : {5.0F, 7.0F}) {
      group->ZeroGradients();
      for (const ReduceScope scope : {ReduceScope::kShard, ReduceScope::kShardAndReplicate}) {
        WEFT_RETURN_IF_ERROR(group->PrepareGradients());
        AddGradient(*group->parameters()[0], std::vector<float>(40, value));
        WEFT_RETURN_IF_ERROR(group->ReduceGradients(scope));
      }
    }
    WEFT_RETURN_IF_ERROR(fixture.context->FinishBackward());
    for (const ShardView& shard : group->Shards()) {
      EXPECT_THAT(absl::MakeConstSpan(shard.grad, static_cast<size_t>(shard.elements())), Each(2 * 4 * 7.0F));
    }
    return absl::OkStatus();
  });
}

TEST(Accumulation, AddsBf16ReductionsInFp32AndRoundsForTheReplicas) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const GroupFixture sharded, GroupFixture::Make(bootstrap, 1));
    WEFT_ASSIGN_OR_RETURN(const GroupFixture replicated, GroupFixture::Make(bootstrap, 2));
    for (ShardingPolicy policy : PolicyOfEachLayout()) {
      policy.reduce_dtype = DType::kBF16;
      // bf16 has 8 significant bits: there 256 + 1 is 256, but without replicas all additions are in fp32.
      // With replicas each rank's 128.75 is rounded to 129 before the all-reduce.
      for (const auto& [fixture, expected] : {std::pair{&sharded, 257.5F}, {&replicated, 258.0F}}) {
        WEFT_ASSIGN_OR_RETURN(const auto group, fixture->Group(MakeParameters({{40}}), policy));
        for (const float value : {128.0F, 0.5F, 0.25F}) {
          WEFT_RETURN_IF_ERROR(group->PrepareGradients());
          AddGradient(*group->parameters()[0], std::vector<float>(40, value));
          WEFT_RETURN_IF_ERROR(
              group->ReduceGradients(value < 0.5F ? ReduceScope::kShardAndReplicate : ReduceScope::kShard));
        }
        WEFT_RETURN_IF_ERROR(fixture->context->FinishBackward());
        for (const ShardView& shard : group->Shards()) {
          EXPECT_THAT(absl::MakeConstSpan(shard.grad, static_cast<size_t>(shard.elements())), Each(expected));
        }
      }
    }
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
