// Resharding after forward to a regather group, and the memory of images.
#include <algorithm>
#include <map>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/group_fixture.h"
#include "tests/sharding/support/status_codes.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;
using State = ParamGroup::State;

CommContext::Options RegatherOver(int ranks) {
  CommContext::Options options;
  if (ranks != 0) options.lanes.regather_sizes = {ranks};
  return options;
}

// Size of a block of node memory.
size_t InCacheLines(int64_t bytes) {
  return static_cast<size_t>(std::max<int64_t>(1, (bytes + 63) / 64)) * 64;
}

TEST(Regather, GathersTheParametersFromNeighborsOnly) {
  for (const auto& [ranks, size] : {std::pair{2, 2}, {4, 2}, {4, 4}, {6, 3}, {6, 2}}) {
    RunRanks(NodeMap::OneNode(ranks), [&, ranks = ranks, size = size](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap, 1, RegatherOver(size)));
      for (ShardingPolicy policy : PolicyOfEachLayout(size)) {
        for (const DType dtype : {DType::kF32, DType::kBF16}) {
          policy.param_dtype = dtype;
          const auto parameters = MakeParameters({{7, 9}, {0}, {33}, {1}, {}});
          WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(parameters, policy));
          WEFT_RETURN_IF_ERROR(Gather(*group));
          const size_t before = fixture.context->memory().image_bytes();
          const int64_t bytes_before = fixture.engine.engine->counters().all_gather_bytes;
          WEFT_RETURN_IF_ERROR(group->ReshardAfterForward());
          EXPECT_EQ(group->state(), State::kShardedAfterForward);
          WEFT_RETURN_IF_ERROR(group->ReshardAfterForward());
          for (const auto& parameter : parameters) EXPECT_EQ(parameter->data.data, nullptr);
          WEFT_RETURN_IF_ERROR(fixture.context->FinishBackward());
          const FlatLayout& layout = group->layout();
          const auto element_bytes = static_cast<int64_t>(SizeOf(dtype));
          const int first = bootstrap.rank() % size * (ranks / size);
          const int64_t kept =
              (layout.gathered_offset(first + ranks / size) - layout.gathered_offset(first)) * element_bytes;
          EXPECT_EQ(fixture.context->memory().image_bytes(), InCacheLines(kept));
          EXPECT_LT(fixture.context->memory().image_bytes(), before);
          for (int use = 0; use < 2; ++use) {  // The second one finds the group unsharded.
            WEFT_RETURN_IF_ERROR(Gather(*group));
            for (const auto& parameter : parameters) {
              EXPECT_EQ(ReadValues(parameter->data), Indices(parameter->elements()));
            }
          }
          EXPECT_EQ(fixture.engine.engine->counters().all_gather_bytes - bytes_before,
                    layout.gathered_elements() * element_bytes - kept);
          // After a full reshard it gathers from all ranks.
          WEFT_RETURN_IF_ERROR(group->ReshardAfterForward());
          WEFT_RETURN_IF_ERROR(group->Reshard());
          EXPECT_EQ(group->state(), State::kSharded);
          WEFT_RETURN_IF_ERROR(fixture.context->FinishBackward());
          EXPECT_EQ(fixture.context->memory().image_bytes(), 0);
          WEFT_RETURN_IF_ERROR(Gather(*group));
          EXPECT_EQ(ReadValues(parameters[0]->data), Indices(63));
          WEFT_RETURN_IF_ERROR(group->Reshard());
        }
      }
      return absl::OkStatus();
    });
  }
}

TEST(Regather, KeepsNoPartOfEmptyGroupsOrWithoutARegatherGroup) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    for (const int size : {0, 2}) {
      WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap, 1, RegatherOver(size)));
      for (const ShardingPolicy& policy : PolicyOfEachLayout(size)) {
        WEFT_ASSIGN_OR_RETURN(const auto group, fixture.Group(MakeParameters({{0}}), policy));
        WEFT_RETURN_IF_ERROR(group->ReshardAfterForward());
        EXPECT_EQ(group->state(), State::kSharded);
        WEFT_RETURN_IF_ERROR(Gather(*group));
        WEFT_RETURN_IF_ERROR(group->ReshardAfterForward());
        EXPECT_EQ(group->state(), State::kSharded);
      }
    }
    return absl::OkStatus();
  });
}

TEST(Regather, TrainsToTheSameBitsAsGatheringFromAll) {
  for (const FlatKind layout : kFlatKinds) {
    std::map<std::vector<float>, int> seen;
    std::mutex mutex;
    for (const int size : {0, 2, 4}) {
      RunRanks(NodeMap::RanksPerNode(4, 2), [&](Bootstrap& bootstrap) -> absl::Status {
        ToyRun run{.replicate = 1, .shard = 4};
        run.policy.layout = layout;
        run.policy.reshard_after_forward_size = size;
        run.policy.reshard_root_after_forward = true;
        run.policy.prefetch_depth = 1;
        WEFT_ASSIGN_OR_RETURN(const ToyOutcome outcome, TrainToy(bootstrap, run));
        EXPECT_EQ(outcome.sharding.all_gathers, 2 + 1 + 3);  // Two blocks stay unsharded for backward.
        const std::lock_guard lock(mutex);
        ++seen[outcome.weights];
        return absl::OkStatus();
      });
    }
    EXPECT_THAT(seen, ::testing::SizeIs(1));
  }
}

// The blocks of the toy differ from each other.
std::optional<int> SizeOf(const std::string& group) {
  if (group == "layers.0") return 2;
  if (group == "layers.1") return 4;
  return group == "layers.2" ? std::optional(0) : std::nullopt;
}

TEST(Regather, TakesItsSizeFromEachModule) {
  for (const FlatKind layout : kFlatKinds) {
    RunRanks(NodeMap::RanksPerNode(4, 2), [&](Bootstrap& bootstrap) -> absl::Status {
      ToyRun run{.replicate = 1, .shard = 4};
      run.policy.layout = layout;
      run.policy.prefetch_depth = 0;
      run.policy.node_shared = NodeShared::kOff;
      run.sizes = {16, 15, 8, 8, 3};  // Backward gathers all blocks but the last again.
      WEFT_ASSIGN_OR_RETURN(const ToyOutcome whole, TrainToy(bootstrap, run));
      run.policy.reshard_after_forward_size_of = SizeOf;
      WEFT_ASSIGN_OR_RETURN(const ToyOutcome parts, TrainToy(bootstrap, run));
      EXPECT_EQ(parts.weights, whole.weights);
      EXPECT_EQ(parts.norms, whole.norms);
      EXPECT_EQ(parts.engine.all_gather_bytes, parts.expected.all_gather_bytes);
      EXPECT_EQ(parts.sharding.copied_bytes, parts.expected.copied_bytes);
      EXPECT_LT(parts.engine.all_gather_bytes, whole.engine.all_gather_bytes);
      return absl::OkStatus();
    });
  }
}

TEST(Regather, LeavesImagesSharedIfEachModuleKeepsNothing) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    ToyRun run{.replicate = 1, .shard = 2};
    run.policy.reshard_after_forward_size = 2;
    WEFT_ASSIGN_OR_RETURN(const ToyOutcome parts, TrainToy(bootstrap, run));
    EXPECT_GT(parts.engine.all_gather_bytes, 0);
    run.policy.reshard_after_forward_size_of = [](const std::string&) { return 0; };
    WEFT_ASSIGN_OR_RETURN(const ToyOutcome shared, TrainToy(bootstrap, run));
    EXPECT_EQ(shared.engine.all_gather_bytes, 0);
    return absl::OkStatus();
  });
}

TEST(Regather, NamesTheModuleWhoseSizeIsWrong) {
  RunRanks(NodeMap::OneNode(4), [](Bootstrap& bootstrap) -> absl::Status {
    for (const int size : {3, 1, -2, 8}) {
      ToyRun run{.replicate = 1, .shard = 4};
      run.policy.reshard_after_forward_size_of = [size](const std::string& group) {
        return group == "layers.1" ? std::optional(size) : std::nullopt;
      };
      EXPECT_THAT(
          TrainToy(bootstrap, run).status(),
          StatusIs(kInvalid, HasSubstr(absl::StrCat(
                                 "parameter group 'layers.1': reshard_after_forward_size is ", size,
                                 ": it must be 0 (keep nothing) or one of 2, 4, as the shard group has 4"))));
    }
    ToyRun run{.replicate = 1, .shard = 4};
    run.policy.reshard_after_forward = false;
    run.policy.reshard_after_forward_size_of = SizeOf;
    EXPECT_THAT(TrainToy(bootstrap, run).status(),
                StatusIs(kInvalid, HasSubstr("'layers.0': reshard_after_forward_size is 2, although")));
    return absl::OkStatus();
  });
}

TEST(Regather, RefusesASizeThatDoesNotDivideTheShardGroup) {
  RunRanks(NodeMap::OneNode(4), [](Bootstrap& bootstrap) -> absl::Status {
    for (const int size : {3, 1, -2, 8}) {
      EXPECT_THAT(
          GroupFixture::Make(bootstrap, 1, RegatherOver(size)).status(),
          StatusIs(kInvalid, HasSubstr(absl::StrCat("reshard_after_forward_size is ", size,
                                                    ": it must be more than 1, and divide the 4 ranks"))));
    }
    return absl::OkStatus();
  });
}

TEST(RetiredImages, TakeNoMoreMemoryThanTheGroupsUnshardedAtOnce) {
  RunRanks(NodeMap::RanksPerNode(4, 2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const GroupFixture fixture, GroupFixture::Make(bootstrap));
    std::vector<std::unique_ptr<ParamGroup>> groups;
    size_t largest_pair = 0;
    for (const int64_t elements : {4096, 64, 640, 4096, 128, 2048}) {
      WEFT_ASSIGN_OR_RETURN(groups.emplace_back(), fixture.Group(MakeParameters({{elements}})));
      if (groups.size() < 2) continue;
      const auto bytes = [&groups](size_t i) {
        return static_cast<size_t>(groups[i]->layout().image_elements()) * sizeof(float);
      };
      largest_pair = std::max(largest_pair, bytes(groups.size() - 1) + bytes(groups.size() - 2));
    }
    // Each group is used while the next one is gathered, as in forward.
    for (int pass = 0; pass < 3; ++pass) {
      fixture.context->memory().ResetPeaks();
      WEFT_RETURN_IF_ERROR(groups[0]->Unshard(Priority::kCritical));
      for (size_t i = 0; i < groups.size(); ++i) {
        if (i + 1 < groups.size()) WEFT_RETURN_IF_ERROR(groups[i + 1]->Unshard(Priority::kPrefetch));
        WEFT_RETURN_IF_ERROR(groups[i]->WaitUnshard());
        WEFT_RETURN_IF_ERROR(groups[i]->Reshard());
      }
      EXPECT_EQ(fixture.context->memory().peaks().image_bytes, largest_pair);
      WEFT_RETURN_IF_ERROR(fixture.context->FinishBackward());
    }
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
