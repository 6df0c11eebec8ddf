// A transformer with one delayed rank at a time: before a gather, after a forward, before a reduction or
// before an update. Peers wait for it; results do not change.
#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/toy_training.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/tiny_llama.h"
#include "weft/core/hash.h"
#include "weft/nn/llama.h"
#include "weft/nn/materialize.h"

namespace weft::testing {
namespace {

constexpr int kRanks = 4;
constexpr int kSteps = 3;
constexpr int64_t kRows = 8;  // Sequences of a step, over all ranks.
constexpr int64_t kLength = 6;

// Point of a step at which a rank is delayed.
enum class Point : uint8_t { kBeforeGather, kAfterForward, kBeforeReduction, kBeforeUpdate, kNever };

// Delays one rank after the other at a point: the rank continues when all ranks have reached the point.
class RankDelays {
 public:
  explicit RankDelays(Point point) : point_(point) {}

  void Reach(Point point, int rank) {
    if (point != point_) return;
    std::unique_lock lock(mutex_);
    const int visit = ++visits_[static_cast<size_t>(rank)];
    changed_.notify_all();
    if (visit % kRanks != rank) return;
    changed_.wait(lock, [&] {
      return std::all_of(visits_.begin(), visits_.end(), [visit](int visits) { return visits >= visit; });
    });
  }

 private:
  const Point point_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> visits_ = std::vector<int>(kRanks);
};

Tensor TokenIds(int64_t begin, int64_t count, int64_t shift) {
  Tensor ids = Tensor::Empty(DType::kI32, {count, kLength});
  for (int64_t i = 0; i < ids.elements(); ++i) {
    const int64_t place = begin * kLength + i + shift;
    ids.As<int32_t>()[i] = static_cast<int32_t>((place * place + 3 * place) % TinyLlama().vocab_size);
  }
  return ids;
}

// Runs forward and backward of sequences [begin, begin + count). Returns their part of the loss.
absl::StatusOr<double> Pass(LlamaModel& net, int64_t begin, int64_t count) {
  Invocation invocation(/*gradients=*/true, 1.0F / static_cast<float>(kRows * kLength));
  WEFT_ASSIGN_OR_RETURN(const Tensors loss,
                        net.Forward(invocation, {TokenIds(begin, count, 0), TokenIds(begin, count, 1)}));
  WEFT_RETURN_IF_ERROR(net.Backward(invocation, {Tensor::Scalar(1.0F)}).status());
  return *loss[0].As<float>();
}

// Adds hooks that run before those of sharding, so that a rank is late to gather and to reduce.
void AddDelays(LlamaModel& net, RankDelays& delays, int rank) {
  const auto reach = [&delays, rank](Point point) {
    return [&delays, rank, point](Module&, Invocation&, Tensors&) {
      delays.Reach(point, rank);
      return absl::OkStatus();
    };
  };
  for (DecoderBlock* block : net.blocks()) {
    block->AddForwardPreHook(reach(Point::kBeforeGather));
    block->AddForwardPostHook(reach(Point::kAfterForward));
    block->AddBackwardPostHook(reach(Point::kBeforeReduction));
  }
}

struct Outcome {
  std::vector<double> losses;  // This rank's parts, by step.
  std::vector<float> weights;
};

// `in_backward`: updates without clipping, in each backward.
absl::StatusOr<Outcome> Train(Bootstrap& bootstrap, const ShardingPolicy& policy, RankDelays& delays,
                              bool in_backward = false) {
  const int rank = bootstrap.rank();
  WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
  WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(1, kRanks));
  WEFT_ASSIGN_OR_RETURN(const auto net, LlamaModel::Create(TinyLlama()));
  AddDelays(*net, delays, rank);
  const std::vector<Module*> blocks(net->blocks().begin(), net->blocks().end());
  WEFT_ASSIGN_OR_RETURN(const auto model,
                        FullyShard(*net, blocks, mesh, *engine.engine, policy, LoadInitialValues(kToySeed)));
  Outcome outcome;
  for (int step = 0; step < kSteps; ++step) {
    constexpr int64_t kShare = kRows / kRanks;
    if (in_backward) WEFT_RETURN_IF_ERROR(BeginToyUpdateInBackward(*model));
    WEFT_ASSIGN_OR_RETURN(outcome.losses.emplace_back(), Pass(*net, step * kRows + rank * kShare, kShare));
    delays.Reach(Point::kBeforeUpdate, rank);
    if (in_backward) {
      WEFT_RETURN_IF_ERROR(FinishToyUpdateInBackward(*model, nullptr));
      continue;
    }
    WEFT_RETURN_IF_ERROR(ToyUpdate(*model, 1.0, nullptr));
  }
  WEFT_ASSIGN_OR_RETURN(outcome.weights, ToyWeights(*model));
  return outcome;
}

// Compares the loss of the first step with that of one rank, and the final weights of all runs. On one node
// shards are in place, except with partial resharding.
TEST(LateRanks, ChangeNoBitForAnyKindOfResharding) {
  WEFT_CHECK(kRows % kRanks == 0, "ranks share a step evenly");
  const auto alone = LlamaModel::Create(TinyLlama()).value();
  const MaterializedParameters memory(*alone, kToySeed, DType::kF32, DType::kF32);
  ASSERT_OK_AND_ASSIGN(const double first_loss, Pass(*alone, 0, kRows));
  std::map<uint64_t, std::string> seen;
  for (const int parts : {0, 1, 2}) {  // Forward keeps one of this many parts of an image; 0: nothing.
    ShardingPolicy policy;
    policy.reshard_after_forward = parts != 1;
    policy.reshard_after_forward_size = parts == 2 ? 2 : 0;
    for (const int ranks_per_node : {2, 4}) {
      for (const Point point : {Point::kNever, Point::kBeforeGather, Point::kAfterForward,
                                Point::kBeforeReduction, Point::kBeforeUpdate}) {
        const std::string schedule = absl::StrCat("parts ", parts, ", ", ranks_per_node,
                                                  " ranks a node, late at ", static_cast<int>(point));
        SCOPED_TRACE(schedule);
        RankDelays delays(point);
        std::vector<double> losses(kSteps);
        std::mutex mutex;
        RunRanks(NodeMap::RanksPerNode(kRanks, ranks_per_node), [&](Bootstrap& bootstrap) -> absl::Status {
          WEFT_ASSIGN_OR_RETURN(const Outcome outcome, Train(bootstrap, policy, delays));
          const std::lock_guard lock(mutex);
          for (size_t step = 0; step < losses.size(); ++step) losses[step] += outcome.losses[step];
          seen.emplace(Hash64(outcome.weights.data(), outcome.weights.size() * sizeof(float)), schedule);
          return absl::OkStatus();
        });
        EXPECT_NEAR(losses[0], first_loss, 1e-6 * first_loss);
        EXPECT_LT(losses.back(), losses.front());
      }
    }
  }
  EXPECT_THAT(seen, ::testing::SizeIs(1));
}

// A rank that is late in backward still reads shards of ranks that may update others: see Note [Shards that
// are written in backward].
TEST(LateRanks, ChangeNoBitOfUpdatesInBackward) {
  std::map<uint64_t, std::string> seen;
  for (const int ranks_per_node : {2, 4}) {
    for (const Point point : {Point::kNever, Point::kBeforeGather, Point::kBeforeReduction}) {
      for (const NodeShared node_shared : {NodeShared::kOff, NodeShared::kOn}) {
        ShardingPolicy policy;
        policy.unused_gradients = UnusedGradients::kZero;
        policy.node_shared = node_shared;
        RankDelays delays(point);
        std::mutex mutex;
        RunRanks(NodeMap::RanksPerNode(kRanks, ranks_per_node), [&](Bootstrap& bootstrap) -> absl::Status {
          WEFT_ASSIGN_OR_RETURN(const Outcome outcome,
                                Train(bootstrap, policy, delays, /*in_backward=*/true));
          const std::lock_guard lock(mutex);
          seen.emplace(Hash64(outcome.weights.data(), outcome.weights.size() * sizeof(float)),
                       absl::StrCat(ranks_per_node, " ranks a node, late at ", static_cast<int>(point)));
          return absl::OkStatus();
        });
      }
    }
  }
  EXPECT_THAT(seen, ::testing::SizeIs(1));
}

}  // namespace
}  // namespace weft::testing
