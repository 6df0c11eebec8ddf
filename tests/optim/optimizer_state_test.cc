// Tests that weights and optimizer states, saved by name on one mesh in the middle of a run, can be loaded on
// another mesh.
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/optim/uneven_net.h"
#include "tests/support/rank_engine.h"
#include "tests/support/status_matchers.h"
#include "weft/mesh/thread_bootstrap.h"
#include "weft/optim/sharded_adamw.h"
#include "weft/optim/sharded_muon.h"
#include "weft/optim/sharded_sgd.h"
#include "weft/sharding/fully_shard.h"
#include "weft/sharding/state_dict.h"

namespace weft {
namespace {

using ::weft::testing::kRows;
using ::weft::testing::kSizes;
using ::weft::testing::Pass;
using ::weft::testing::UnevenNet;

constexpr int kHalf = 4;  // Steps before the state is saved, and after it is loaded.

// State pieces of all ranks, with copies of their elements. Thread safety: any rank's thread may call Keep.
class SavedState {
 public:
  void Keep(const std::vector<StatePiece>& pieces) {
    const std::lock_guard lock(mutex_);
    for (StatePiece piece : pieces) {
      const auto elements = static_cast<size_t>(piece.elements.elements());
      piece.data = values_.emplace_back(piece.data, piece.data + elements).data();
      pieces_.push_back(piece);
    }
  }
  const std::vector<StatePiece>& pieces() const { return pieces_; }

 private:
  std::mutex mutex_;
  std::deque<std::vector<float>> values_;
  std::vector<StatePiece> pieces_;
};

// Gathers a state whole: it has the parameters that any rank has a view of, each once.
absl::Status CheckFullState(ShardedModel& model, ShardedOptimizer& optimizer, size_t state) {
  std::multiset<std::string> gathered;
  const std::vector<ShardView> views = optimizer.State(state);
  WEFT_RETURN_IF_ERROR(GatherFullState(model, views, StateTarget::kEveryRank,
                                       [&](const Parameter& parameter, absl::Span<const float> values) {
                                         EXPECT_EQ(std::ssize(values), parameter.elements());
                                         gathered.insert(parameter.name);
                                         return absl::OkStatus();
                                       }));
  for (const ShardView& view : views) EXPECT_EQ(gathered.count(view.parameter->name), 1);
  return absl::OkStatus();
}

// One part of a training run.
struct Leg {
  int replicate, shard;
  FlatKind layout;
  const SavedState* from = nullptr;  // State to resume from. Null: initial values.
  int steps = kHalf;
  bool optimizer_over_replicas = false;
};

using MakeOptimizer = std::function<absl::StatusOr<std::unique_ptr<ShardedOptimizer>>(ShardedModel&)>;

absl::StatusOr<std::unique_ptr<ShardedOptimizer>> MakeAdamW(ShardedModel& model) {
  return std::make_unique<ShardedAdamW>(model.Shards(), AdamWOptions{.lr = 1e-2});
}

// Momentum for the first layer only.
absl::StatusOr<std::unique_ptr<ShardedOptimizer>> MakeSgd(ShardedModel& model) {
  return std::make_unique<ShardedSgd>(
      model.Shards(), SgdOptions{.lr = 1e-2},
      std::vector<SgdParamGroup>{{NameContains({"first"}), {.lr = 1e-2, .momentum = 0.9}}});
}

// Muon for the first layer, AdamW for the second.
absl::StatusOr<std::unique_ptr<ShardedOptimizer>> MakeMuon(ShardedModel& model) {
  return ShardedMuon::Create(model, NameContains({"first"}), {.lr = 1e-2}, {.lr = 1e-2});
}

std::string SuffixOf(const ShardedOptimizer& optimizer, size_t state) {
  return "." + optimizer.state_names()[state];
}

absl::Status TrainRank(Bootstrap& bootstrap, const Leg& leg, const MakeOptimizer& make, SavedState& state) {
  WEFT_ASSIGN_OR_RETURN(const testing::RankEngine rank,
                        testing::RankEngine::Make(bootstrap, {}, {.segment_bytes = 4 << 20}));
  WEFT_ASSIGN_OR_RETURN(
      const DeviceMesh mesh,
      DeviceMesh::Create({{"replicate", leg.replicate}, {"shard", leg.shard}}, bootstrap.size()));
  ShardingPolicy policy;
  policy.layout = leg.layout;
  policy.shard_optimizer_over_replicas = leg.optimizer_over_replicas;
  UnevenNet net(kSizes[0]);
  const ShardLoader loader =
      leg.from == nullptr ? LoadInitialValues(/*seed=*/3) : LoadFromState(leg.from->pieces());
  WEFT_ASSIGN_OR_RETURN(const auto model,
                        FullyShard(net, net.children(), mesh, *rank.engine, policy, loader));
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<ShardedOptimizer> optimizer, make(*model));
  for (size_t i = 0; leg.from != nullptr && i < optimizer->state_names().size(); ++i) {
    WEFT_RETURN_IF_ERROR(
        FillShards(optimizer->State(i), LoadFromState(leg.from->pieces(), SuffixOf(*optimizer, i))));
  }
  if (leg.from != nullptr) optimizer->set_steps(kHalf);
  const int64_t rows = kRows / bootstrap.size();
  for (int step = 0; step < leg.steps; ++step) {
    const int data_step = static_cast<int>(optimizer->steps());
    WEFT_RETURN_IF_ERROR(Pass(net, kSizes[0], data_step, bootstrap.rank() * rows, rows).status());
    WEFT_RETURN_IF_ERROR(optimizer->Step(*model));
    model->ZeroGradients();
  }
  state.Keep(ShardedState(model->Shards()));
  for (size_t i = 0; i < optimizer->state_names().size(); ++i) {
    state.Keep(ShardedState(optimizer->State(i), SuffixOf(*optimizer, i)));
    WEFT_RETURN_IF_ERROR(CheckFullState(*model, *optimizer, i));
  }
  return absl::OkStatus();
}

void Train(const Leg& leg, SavedState& state, const MakeOptimizer& make = MakeAdamW) {
  EXPECT_OK(RunThreadRanks(NodeMap::OneNode(leg.replicate * leg.shard),
                           [&](Bootstrap& bootstrap) { return TrainRank(bootstrap, leg, make, state); }));
}

// All elements of one parameter, or of one of its moments.
std::vector<float> Whole(const SavedState& state, const Parameter& parameter, const std::string& suffix) {
  std::vector<float> values(static_cast<size_t>(parameter.elements()));
  EXPECT_OK(LoadFromState(state.pieces(), suffix)(parameter, 0, parameter.elements(), values.data()));
  return values;
}

TEST(OptimizerState, ResumesToTheSameBitsOnAnotherMesh) {
  SavedState half;
  Train({1, 4, FlatKind::kContiguous}, half);
  SavedState whole;
  Train({1, 4, FlatKind::kContiguous, nullptr, 2 * kHalf}, whole);
  UnevenNet net(kSizes[0]);
  SavedState half_by_replicas;
  Train({2, 2, FlatKind::kPerParameter, nullptr, kHalf, /*optimizer_over_replicas=*/true}, half_by_replicas);
  for (const Leg& leg :
       {Leg{1, 4, FlatKind::kContiguous, &half}, Leg{2, 2, FlatKind::kPerParameter, &half},
        Leg{4, 1, FlatKind::kContiguous, &half}, Leg{1, 4, FlatKind::kRows, &half},
        Leg{2, 2, FlatKind::kContiguous, &half, kHalf, true}, Leg{2, 2, FlatKind::kRows, &half, kHalf, true},
        Leg{4, 1, FlatKind::kPerParameter, &half, kHalf, true},
        Leg{1, 4, FlatKind::kContiguous, &half_by_replicas}, Leg{2, 2, FlatKind::kRows, &half_by_replicas},
        Leg{4, 1, FlatKind::kContiguous, &half_by_replicas, kHalf, true}}) {
    SavedState resumed;
    Train(leg, resumed);
    for (const auto& parameter : net.AllParameters()) {
      for (const std::string suffix : {"", ".exp_avg", ".exp_avg_sq"}) {
        EXPECT_EQ(Whole(resumed, *parameter, suffix), Whole(whole, *parameter, suffix))
            << parameter->name << suffix << " on " << leg.replicate << "x" << leg.shard;
      }
    }
  }
}

// Each optimizer keeps states for some parameters only.
TEST(OptimizerState, OfMuonAndSgdResumesToTheSameBitsOnAnotherMesh) {
  for (const bool is_muon : {true, false}) {
    const MakeOptimizer make = is_muon ? MakeMuon : MakeSgd;
    SavedState half;
    Train({1, 4, FlatKind::kContiguous}, half, make);
    SavedState whole;
    Train({1, 4, FlatKind::kContiguous, nullptr, 2 * kHalf}, whole, make);
    for (const Leg& leg : {Leg{1, 4, FlatKind::kRows, &half}, Leg{2, 2, FlatKind::kPerParameter, &half},
                           Leg{4, 1, FlatKind::kContiguous, &half}}) {
      SavedState resumed;
      Train(leg, resumed, make);
      std::set<std::string> found;
      for (const StatePiece& piece : whole.pieces()) {
        if (!found.insert(piece.name).second) continue;
        Parameter array;
        array.name = piece.name;
        array.shape = piece.shape;
        EXPECT_EQ(Whole(resumed, array, ""), Whole(whole, array, ""))
            << piece.name << " on " << leg.replicate << "x" << leg.shard;
      }
      // Two weights and their states: momentum and two moments, or one momentum.
      EXPECT_EQ(found.size(), is_muon ? 5 : 3);
    }
  }
}

}  // namespace
}  // namespace weft
