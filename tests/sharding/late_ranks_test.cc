// A transformer whose ranks are late, each at its turn: after a forward, before a gather, a reduction or an
// update. Schedules wait for them; results do not change.
#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/toy_training.h"
#include "tests/support/thread_ranks.h"
#include "weft/core/hash.h"
#include "weft/nn/llama.h"
#include "weft/nn/materialize.h"

namespace weft::testing {
namespace {

constexpr int kRanks = 4;
constexpr int kSteps = 3;
constexpr int64_t kRows = 8;  // Sequences of a step.
constexpr int64_t kLength = 6;

LlamaConfig SmallTransformer() {
  LlamaConfig config;
  config.vocab_size = 29;
  config.dim = 16;
  config.layers = 3;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 4;
  config.ffn_dim = 17;
  return config;
}

enum class Moment : uint8_t { kBeforeGather, kAfterForward, kBeforeReduction, kBeforeUpdate, kNever };

// Makes one rank after the other late at a moment: it goes on when all others have come there as well.
class Lateness {
 public:
  explicit Lateness(Moment moment) : moment_(moment) {}

  void At(Moment moment, int rank) {
    if (moment != moment_) return;
    std::unique_lock lock(mutex_);
    const int visit = ++visits_[static_cast<size_t>(rank)];
    changed_.notify_all();
    if (visit % kRanks != rank) return;
    changed_.wait(lock, [&] {
      return std::all_of(visits_.begin(), visits_.end(), [visit](int others) { return others >= visit; });
    });
  }

 private:
  const Moment moment_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> visits_ = std::vector<int>(kRanks);
};

Tensor TokenIds(int64_t begin, int64_t count, int64_t shift) {
  Tensor ids = Tensor::Empty(DType::kI32, {count, kLength});
  for (int64_t i = 0; i < ids.elements(); ++i) {
    const int64_t place = begin * kLength + i + shift;
    ids.As<int32_t>()[i] = static_cast<int32_t>((place * place + 3 * place) % SmallTransformer().vocab_size);
  }
  return ids;
}

// Forward and backward of sequences [begin, begin + count); returns their part of the loss.
absl::StatusOr<double> Pass(LlamaModel& net, int64_t begin, int64_t count) {
  Invocation invocation(/*gradients=*/true, 1.0F / static_cast<float>(kRows * kLength));
  WEFT_ASSIGN_OR_RETURN(const Tensors loss,
                        net.Forward(invocation, {TokenIds(begin, count, 0), TokenIds(begin, count, 1)}));
  const Tensor one = Tensor::Empty(DType::kF32, {});
  *one.As<float>() = 1.0F;
  WEFT_RETURN_IF_ERROR(net.Backward(invocation, {one}).status());
  return *loss[0].As<float>();
}

// Hooks from before sharding's: a rank is late to gather, and to reduce.
void MakeLate(LlamaModel& net, Lateness& lateness, int rank) {
  const auto at = [&lateness, rank](Moment moment) {
    return [&lateness, rank, moment](Module&, Invocation&, Tensors&) {
      lateness.At(moment, rank);
      return absl::OkStatus();
    };
  };
  for (DecoderBlock* block : net.blocks()) {
    block->AddForwardPreHook(at(Moment::kBeforeGather));
    block->AddForwardPostHook(at(Moment::kAfterForward));
    block->AddBackwardPostHook(at(Moment::kBeforeReduction));
  }
}

struct Outcome {
  std::vector<double> losses;  // This rank's parts, by step.
  std::vector<float> weights;
};

absl::StatusOr<Outcome> Train(Bootstrap& bootstrap, const ShardingPolicy& policy, Lateness& lateness) {
  const int rank = bootstrap.rank();
  WEFT_ASSIGN_OR_RETURN(const RankEngine engine, RankEngine::Make(bootstrap));
  WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(1, kRanks));
  WEFT_ASSIGN_OR_RETURN(const auto net, LlamaModel::Create(SmallTransformer()));
  MakeLate(*net, lateness, rank);
  const std::vector<Module*> blocks(net->blocks().begin(), net->blocks().end());
  WEFT_ASSIGN_OR_RETURN(const auto model,
                        FullyShard(*net, blocks, mesh, *engine.engine, policy, LoadInitialValues(kToySeed)));
  Outcome outcome;
  for (int step = 0; step < kSteps; ++step) {
    constexpr int64_t kShare = kRows / kRanks;
    WEFT_ASSIGN_OR_RETURN(outcome.losses.emplace_back(), Pass(*net, step * kRows + rank * kShare, kShare));
    lateness.At(Moment::kBeforeUpdate, rank);
    WEFT_RETURN_IF_ERROR(ToyUpdate(*model, 1.0, nullptr));
  }
  WEFT_ASSIGN_OR_RETURN(outcome.weights, ToyWeights(*model));
  return outcome;
}

// The loss of the first step on one rank, and what all ranks made of it.
// On one node shards are read in place, but for the last form of resharding.
TEST(LateRanks, ChangeNothingHoweverBlocksAreResharded) {
  WEFT_CHECK(kRows % kRanks == 0, "ranks share a step evenly");
  const auto alone = LlamaModel::Create(SmallTransformer()).value();
  const MaterializedParameters memory(*alone, kToySeed, DType::kF32, DType::kF32);
  ASSERT_OK_AND_ASSIGN(const double first_loss, Pass(*alone, 0, kRows));
  std::map<uint64_t, std::string> seen;
  for (const int parts : {0, 1, 2}) {  // Of a block's image, how many are there of which forward keeps one.
    ShardingPolicy policy;
    policy.reshard_after_forward = parts != 1;
    policy.reshard_after_forward_size = parts == 2 ? 2 : 0;
    for (const int ranks_per_node : {2, 4}) {
      for (const Moment moment : {Moment::kNever, Moment::kBeforeGather, Moment::kAfterForward,
                                  Moment::kBeforeReduction, Moment::kBeforeUpdate}) {
        const std::string schedule = absl::StrCat("parts ", parts, ", ", ranks_per_node,
                                                  " ranks a node, late at ", static_cast<int>(moment));
        SCOPED_TRACE(schedule);
        Lateness lateness(moment);
        std::vector<double> losses(kSteps);
        std::mutex mutex;
        RunRanks(NodeMap::RanksPerNode(kRanks, ranks_per_node), [&](Bootstrap& bootstrap) -> absl::Status {
          WEFT_ASSIGN_OR_RETURN(const Outcome outcome, Train(bootstrap, policy, lateness));
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

}  // namespace
}  // namespace weft::testing
