// Exact order of the events of a sharded model: unshard, wait, compute, reduce, reshard.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/sharded_toy.h"

namespace weft::testing {
namespace {

using ::testing::ElementsAreArray;

using Events = std::vector<std::string>;

std::string ShortName(const std::string& name) {
  return name == "net" ? "root" : name.substr(name.size() - 1);
}

// Events of one pass in the recorded order. The blocks are 0, 1 and 2.
Events EventsOfAPass(ToyNet& net, ShardedModel& model, int rank) {
  EXPECT_OK(ToyPassOf(net, model, rank));
  model.ZeroGradients();
  Events events;
  model.SetScheduleObserver([&events](ScheduleEvent event, const std::string& group) {
    events.push_back(absl::StrCat(ToAbsl(Name(event)), " ", ShortName(group)));
  });
  for (Module* module : net.Descendants()) {
    const auto record = [&events](const char* what) {
      return [&events, what](Module& computing, Invocation&, Tensors&) {
        events.push_back(absl::StrCat(what, " ", ShortName(computing.name())));
        return absl::OkStatus();
      };
    };
    module->AddForwardPreHook(record("forward"));
    module->AddBackwardPreHook(record("backward"));
  }
  EXPECT_OK(ToyPassOf(net, model, rank));
  model.SetScheduleObserver(nullptr);
  return events;
}

void ExpectEvents(const ShardingPolicy& policy, const Events& expected,
                  const NodeMap& nodes = NodeMap::OneNode(2)) {
  WithToyModel(nodes, policy, [&](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    EXPECT_THAT(EventsOfAPass(net, model, rank), ElementsAreArray(expected));
    return absl::OkStatus();
  });
}

// Events with the layers of `blocks` in groups, which are named by their last layers.
void ExpectEventsOf(const std::vector<std::vector<size_t>>& blocks, const Events& expected) {
  RunRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(1, bootstrap.size()));
    ToyNet net({6, 6, 6, 6});
    std::vector<ModuleBlock> groups;
    for (const std::vector<size_t>& layers : blocks) {
      std::vector<Module*> modules;
      for (const size_t layer : layers) modules.push_back(&net.layer(layer));
      groups.emplace_back(std::move(modules));
    }
    ShardingPolicy policy;
    policy.prefetch_depth = 0;
    WEFT_ASSIGN_OR_RETURN(const auto model,
                          FullyShard(net, groups, mesh, *engine.engine, policy, LoadInitialValues(kToySeed)));
    EXPECT_THAT(EventsOfAPass(net, *model, bootstrap.rank()), ElementsAreArray(expected));
    return absl::OkStatus();
  });
}

TEST(Schedule, GathersAndReducesSeveralModulesOfAGroupOnce) {
  ExpectEventsOf(
      {{0, 1}, {2}},
      {
          "unshard root",  "wait root",    "forward root",                                          //
          "unshard 1",     "wait 1",       "forward 0",    "forward 1",  "reshard 1",               //
          "unshard 2",     "wait 2",       "forward 2",                                             //
          "backward root", "backward 2",   "reduce 2",     "reshard 2",                             //
          "unshard 1",     "wait 1",       "backward 1",   "backward 0", "reduce 1",  "reshard 1",  //
          "reduce root",   "reshard root",
      });
}

TEST(Schedule, KeepsAGroupUnshardedFromItsFirstModuleToItsLast) {
  ExpectEventsOf({{0, 2}, {1}},
                 {
                     "unshard root",  "wait root",    "forward root",                            //
                     "unshard 2",     "wait 2",       "forward 0",                               //
                     "unshard 1",     "wait 1",       "forward 1",    "reshard 1", "forward 2",  //
                     "backward root", "backward 2",                                              //
                     "unshard 1",     "wait 1",       "backward 1",   "reduce 1",  "reshard 1",  //
                     "backward 0",    "reduce 2",     "reshard 2",                               //
                     "reduce root",   "reshard root",
                 });
}

TEST(Schedule, GathersEachBlockWhenItIsNeededWithoutPrefetching) {
  ShardingPolicy policy;
  policy.prefetch_depth = 0;
  ExpectEvents(policy, {
                           "unshard root",  "wait root",    "forward root",                            //
                           "unshard 0",     "wait 0",       "forward 0",    "reshard 0",               //
                           "unshard 1",     "wait 1",       "forward 1",    "reshard 1",               //
                           "unshard 2",     "wait 2",       "forward 2",                               //
                           "backward root", "backward 2",   "reduce 2",     "reshard 2",               //
                           "unshard 1",     "wait 1",       "backward 1",   "reduce 1",  "reshard 1",  //
                           "unshard 0",     "wait 0",       "backward 0",   "reduce 0",  "reshard 0",  //
                           "reduce root",   "reshard root",
                       });
}

TEST(Schedule, PrefetchesOneBlockBeforeItWaits) {
  ShardingPolicy policy;
  policy.prefetch_depth = 1;
  ExpectEvents(policy, {
                           "unshard root",  "unshard 0",    "wait root", "forward root",  //
                           "unshard 1",     "wait 0",       "forward 0", "reshard 0",     //
                           "unshard 2",     "wait 1",       "forward 1",                  //
                           "wait 2",        "forward 2",                                  //
                           "backward root",                                               //
                           "backward 2",    "reduce 2",     "reshard 2",                  //
                           "unshard 0",     "backward 1",   "reduce 1",  "reshard 1",     //
                           "wait 0",        "backward 0",   "reduce 0",  "reshard 0",     //
                           "reduce root",   "reshard root",
                       });
}

TEST(Schedule, PrefetchesTwoBlocks) {
  ShardingPolicy policy;
  policy.prefetch_depth = 2;
  ExpectEvents(policy, {
                           "unshard root",  "unshard 0",    "unshard 1", "wait root", "forward root",  //
                           "unshard 2",     "wait 0",       "forward 0",                               //
                           "wait 1",        "forward 1",                                               //
                           "wait 2",        "forward 2",                                               //
                           "backward root",                                                            //
                           "backward 2",    "reduce 2",     "reshard 2",                               //
                           "backward 1",    "reduce 1",     "reshard 1",                               //
                           "backward 0",    "reduce 0",     "reshard 0",                               //
                           "reduce root",   "reshard root",
                       });
}

TEST(Schedule, PrefetchesForBackwardDuringForwardIfNodesShareImages) {
  ShardingPolicy policy = SharedImages();
  policy.prefetch_depth = 1;
  ExpectEvents(policy,
               {
                   "unshard root",  "unshard 0",    "wait root", "forward root",  //
                   "unshard 1",     "wait 0",       "forward 0", "reshard 0",     //
                   "unshard 2",     "wait 1",       "forward 1",                  //
                   "unshard 0",     "wait 2",       "forward 2",                  //
                   "backward root",                                               //
                   "backward 2",    "reduce 2",     "reshard 2",                  //
                   "backward 1",    "reduce 1",     "reshard 1",                  //
                   "wait 0",        "backward 0",   "reduce 0",  "reshard 0",     //
                   "reduce root",   "reshard root",
               },
               NodeMap::RanksPerNode(4, 2));
}

// Gathers the farthest group ahead, and reduces two groups at a time, the newer one first.
class OwnRules : public PrefetchRules {
 public:
  OwnRules() : PrefetchRules(1) {}
  std::vector<int> GathersAhead(PassPart /*part*/, int /*group*/, absl::Span<const int> next) const override {
    return next.empty() ? std::vector<int>() : std::vector<int>{next.back()};
  }
  std::vector<int> Reductions(int /*group*/, absl::Span<const int> complete) const override {
    if (complete.size() < 2) return {};
    return {complete.back(), complete.front()};
  }
};

TEST(Schedule, FollowsTheRulesOfAClient) {
  ShardingPolicy policy;
  policy.node_shared = NodeShared::kOff;
  policy.prefetch_depth = 0;
  WithToyModel(2, policy, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    model.SetScheduleRules(std::make_shared<OwnRules>());
    EXPECT_THAT(
        EventsOfAPass(net, model, rank),
        ElementsAreArray({
            "unshard root", "unshard 2",     "wait root",    "forward root",                           //
            "unshard 0",    "wait 0",        "forward 0",    "reshard 0",                              //
            "unshard 1",    "wait 1",        "forward 1",    "reshard 1",                              //
            "wait 2",       "forward 2",                                                               //
            "unshard 0",    "backward root",                                                           //
            "backward 2",   "reshard 2",                                                               //
            "unshard 1",    "wait 1",        "backward 1",   "reduce 1",     "reduce 2", "reshard 1",  //
            "wait 0",       "backward 0",    "reshard 0",                                              //
            "reduce root",  "reduce 0",      "reshard root",
        }));
    return absl::OkStatus();
  });
}

// The gradients of this rank's shards after a pass, end to end.
std::vector<float> GradientsOfAPass(ToyNet& net, ShardedModel& model, int rank) {
  EXPECT_OK(ToyPassOf(net, model, rank));
  std::vector<float> gradients;
  for (const ShardView& shard : model.Shards()) {
    EXPECT_NE(shard.grad, nullptr);
    if (shard.grad != nullptr) gradients.insert(gradients.end(), shard.grad, shard.grad + shard.elements());
  }
  model.ZeroGradients();
  return gradients;
}

TEST(Schedule, ReducesAtTheEndWhatRulesLeaveAlsoOutsideOfTheRecordedOrder) {
  class AtTheEnd : public PrefetchRules {
   public:
    AtTheEnd() : PrefetchRules(0) {}
    std::vector<int> Reductions(int /*group*/, absl::Span<const int> /*complete*/) const override {
      return {};
    }
  };
  ShardingPolicy policy;
  policy.unused_gradients = UnusedGradients::kZero;
  WithToyModel(2, policy, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    net.SetOrder({0, 2});
    const std::vector<float> of_two_layers = GradientsOfAPass(net, model, rank);
    net.SetOrder({0, 1, 2});
    const std::vector<float> expected = GradientsOfAPass(net, model, rank);
    EXPECT_NE(expected, of_two_layers);
    model.SetScheduleRules(std::make_shared<AtTheEnd>());
    EXPECT_EQ(GradientsOfAPass(net, model, rank), expected);
    return absl::OkStatus();
  });
}

TEST(Schedule, RefusesRulesThatReduceGradientsTooEarly) {
  class TooEarly : public PrefetchRules {
   public:
    TooEarly() : PrefetchRules(0) {}
    std::vector<int> Reductions(int /*group*/, absl::Span<const int> /*complete*/) const override {
      return {1};
    }
  };
  WithToyModel(2, {}, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    model.SetScheduleRules(std::make_shared<TooEarly>());
    EXPECT_THAT(ToyPassOf(net, model, rank),
                StatusIs(absl::StatusCode::kInvalidArgument, ::testing::HasSubstr("reduce group 1 after")));
    return absl::OkStatus();
  });
}

// Events of UpdateShards after a pass. The blocks are 0, 1 and 2.
Events EventsOfAnUpdate(ToyNet& net, ShardedModel& model, int rank) {
  EXPECT_OK(ToyPassOf(net, model, rank));
  Events events;
  model.SetScheduleObserver([&events](ScheduleEvent event, const std::string& group) {
    events.push_back(absl::StrCat(ToAbsl(Name(event)), " ", ShortName(group)));
  });
  size_t updated = 0;
  EXPECT_OK(model.UpdateShards([&](absl::Span<const ShardView>) {
    events.push_back(absl::StrCat("update ", ShortName(PartsOf(model).groups[updated++]->name())));
    return absl::OkStatus();
  }));
  model.SetScheduleObserver(nullptr);
  return events;
}

TEST(Schedule, GathersTheFirstGroupsOfForwardDuringTheUpdate) {
  for (const NodeShared shared : {NodeShared::kOff, NodeShared::kOn}) {
    ShardingPolicy policy;
    policy.node_shared = shared;
    policy.prefetch_depth = 1;
    WithToyModel({{0, 0, 1}}, policy, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
      EXPECT_THAT(
          EventsOfAnUpdate(net, model, rank),
          ElementsAreArray({"update root", "unshard root", "update 0", "unshard 0", "update 1", "update 2"}));
      model.ZeroGradients();
      const int64_t gathers = model.counters().all_gathers;
      WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
      EXPECT_EQ(model.counters().all_gathers - gathers, 1 + 3 + 1 - 2);
      WEFT_RETURN_IF_ERROR(model.SetModulesToForwardPrefetch(net, {&net.layer(2)}));
      EXPECT_THAT(
          EventsOfAnUpdate(net, model, rank),
          ElementsAreArray({"update root", "unshard root", "update 0", "update 1", "update 2", "unshard 2"}));
      return absl::OkStatus();  // The model is destroyed with gathers under way.
    });
  }
}

TEST(Schedule, GathersNothingDuringAnUpdateOnOneNode) {
  for (const ShardingPolicy& policy : {PrivateImages(), SharedImages()}) {
    WithToyModel(2, policy, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
      EXPECT_THAT(EventsOfAnUpdate(net, model, rank),
                  ElementsAreArray({"update root", "update 0", "update 1", "update 2"}));
      return absl::OkStatus();
    });
  }
}

TEST(Schedule, ReshardsAllGroupsAfterAForwardWithoutBackward) {
  WithToyModel(2, {}, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    WEFT_RETURN_IF_ERROR(ToyPassOf(net, model, rank));
    Invocation invocation(/*gradients=*/false);
    WEFT_RETURN_IF_ERROR(net.Forward(invocation, {ToyInputs(0, 1, 6)}).status());
    for (const auto& group : PartsOf(model).groups) EXPECT_EQ(group->state(), ParamGroup::State::kSharded);
    return absl::OkStatus();
  });
}

TEST(Schedule, RecomputesWithTheParametersThatBackwardGathered) {
  ShardingPolicy policy;
  policy.prefetch_depth = 0;
  WithToyModel(2, policy, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    net.layer(1).SetActivationCheckpointing(true);
    const Events events = EventsOfAPass(net, model, rank);
    EXPECT_EQ(std::count(events.begin(), events.end(), "unshard 1"), 2);
    // A recompute does not run the module's own hooks.
    EXPECT_EQ(std::count(events.begin(), events.end(), "forward 1"), 1);
    return absl::OkStatus();
  });
}

TEST(Schedule, KeepsBlocksOfARecomputedModuleUnshardedUntilTheirBackward) {
  ShardingPolicy policy;
  policy.prefetch_depth = 0;
  WithToyModel(2, policy, [](ToyNet& net, ShardedModel& model, int rank) -> absl::Status {
    net.SetActivationCheckpointing(true);
    const Events events = EventsOfAPass(net, model, rank);
    const Events backward(std::find(events.begin(), events.end(), "backward root"), events.end());
    EXPECT_THAT(backward, ElementsAreArray({
                              "backward root",                               //
                              "unshard 0",     "wait 0",       "forward 0",  // Recompute of the root.
                              "unshard 1",     "wait 1",       "forward 1",  //
                              "unshard 2",     "wait 2",       "forward 2",  //
                              "backward 2",    "reduce 2",     "reshard 2",  // Backward of the root.
                              "backward 1",    "reduce 1",     "reshard 1",  //
                              "backward 0",    "reduce 0",     "reshard 0",  //
                              "reduce root",   "reshard root",
                          }));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
