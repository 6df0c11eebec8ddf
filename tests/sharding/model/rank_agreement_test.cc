// Ranks that describe their parameter groups differently: all of them get one error that names the group.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sharding/support/group_fixture.h"
#include "tests/sharding/support/sharded_toy.h"
#include "weft/sharding/sharded_groups.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Parameters = std::vector<std::shared_ptr<Parameter>>;

// Options and parameters of one rank. The first group has p0 and p1, the second p2 and p3, each of shape
// [8, 8].
struct Wish {
  ShardingPolicy policy;
  Parameters parameters = MakeParameters({{8, 8}, {8, 8}, {8, 8}, {8, 8}});
};
using WishOf = std::function<Wish(const DeviceMesh& mesh, int rank)>;

// A forward and a backward without gradients.
absl::Status Pass(ShardedGroups& groups) {
  const SchedulePass pass = {1, true};
  WEFT_RETURN_IF_ERROR(groups.BeforeForward(0, pass));
  WEFT_RETURN_IF_ERROR(groups.BeforeForward(1, pass));
  WEFT_RETURN_IF_ERROR(groups.AfterForward(1, pass));
  WEFT_RETURN_IF_ERROR(groups.AfterForward(0, pass));
  WEFT_RETURN_IF_ERROR(groups.BeforeBackward(0, pass));
  WEFT_RETURN_IF_ERROR(groups.BeforeBackward(1, pass));
  WEFT_RETURN_IF_ERROR(groups.AfterBackward(1));
  WEFT_RETURN_IF_ERROR(groups.AfterBackward(0));
  return groups.FinishBackward();
}

// Shards the groups, and runs a pass.
absl::Status Shard(Bootstrap& bootstrap, int replicas, const WishOf& wish_of) {
  WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
  WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(replicas, bootstrap.size() / replicas));
  const auto [policy, p] = wish_of(mesh, bootstrap.rank());
  WEFT_ASSIGN_OR_RETURN(
      const std::unique_ptr<ShardedGroups> groups,
      ShardedGroups::Create(*engine.engine, mesh,
                            {{"root", -1, {p[0], p[1]}}, {"a", 0, {p.begin() + 2, p.end()}}}, policy,
                            LoadIndices));
  return Pass(*groups);
}

// All ranks return the error, with `message`.
void ExpectOneError(int ranks, int replicas, const std::string& message, const WishOf& wish_of) {
  RunRanks(NodeMap::OneNode(ranks), [&](Bootstrap& bootstrap) -> absl::Status {
    EXPECT_THAT(Shard(bootstrap, replicas, wish_of),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
    return absl::OkStatus();
  });
}

void ExpectAgreement(int ranks, int replicas, const WishOf& wish_of) {
  RunRanks(NodeMap::OneNode(ranks),
           [&](Bootstrap& bootstrap) { return Shard(bootstrap, replicas, wish_of); });
}

std::string Differ(const std::string& group, const std::string& ranks, const std::string& what) {
  return "parameter group '" + group + "': ranks " + ranks + ", but differ in " + what;
}

TEST(RankAgreement, NamesTheGroupWhoseShardDimsDiffer) {
  ExpectOneError(2, 1, Differ("a", "0 and 1 hold shards of it", "shard_dim"),
                 [](const DeviceMesh&, int rank) {
                   Wish wish;
                   wish.policy.layout = FlatKind::kPerParameter;
                   wish.policy.shard_dim = [rank](const Parameter& p) { return p.name == "p3" ? rank : 0; };
                   return wish;
                 });
}

TEST(RankAgreement, NamesTheGroupOfWhichRanksFreezeDifferentParameters) {
  ExpectOneError(2, 1,
                 Differ("root", "0 and 1 hold shards of it", "requires_grad or trained_later") +
                     ", first at parameter 0: rank 0 has 'p0' [8, 8] (frozen, shard_dim 0), rank 1 has 'p0' "
                     "[8, 8] (trained, shard_dim 0): give both ranks the same",
                 [](const DeviceMesh&, int rank) {
                   Wish wish;
                   wish.parameters[static_cast<size_t>(rank)]->requires_grad = false;
                   return wish;
                 });
}

TEST(RankAgreement, NamesTheGroupWhoseReplicateGroupsDifferInAShardGroup) {
  ExpectOneError(4, 2, Differ("root", "0 and 1 hold shards of it", "replicate_group"),
                 [](const DeviceMesh& mesh, int rank) {
                   Wish wish;
                   wish.policy.replicate_group = [&mesh, rank](const Parameter& p) {
                     const bool is_alone = p.name == "p0" && rank % 2 == 1;
                     return is_alone ? std::nullopt : std::optional(*mesh.Group({"replicate"}, rank));
                   };
                   return wish;
                 });
}

TEST(RankAgreement, NamesTheGroupWhoseReplicasReduceOtherParameters) {
  // Ranks 2 and 3 leave out p2, so that ranks 0 and 1 would wait for them.
  ExpectOneError(4, 2, Differ("a", "0 and 2 reduce its gradients together", "its name, its parameters"),
                 [](const DeviceMesh& mesh, int rank) {
                   Wish wish;
                   wish.policy.replicate_group = [&mesh, rank](const Parameter& p) {
                     const bool is_alone = p.name == "p2" && rank >= 2;
                     return is_alone ? std::nullopt : std::optional(*mesh.Group({"replicate"}, rank));
                   };
                   return wish;
                 });
}

TEST(RankAgreement, NamesTheGroupWhoseReplicasHaveOtherShards) {
  ExpectOneError(4, 2,
                 Differ("root", "1 and 2 reduce its gradients together", "replicate_group, or their place"),
                 [](const DeviceMesh&, int rank) {
                   Wish wish;
                   wish.policy.replicate_group = [rank](const Parameter&) {
                     return std::optional(
                         GroupOf("crossed", {std::min(rank, 3 - rank), std::max(rank, 3 - rank)}, rank));
                   };
                   return wish;
                 });
}

TEST(RankAgreement, NamesNumbersOfReplicateGroupsThatDiffer) {
  // One replica alone has p2, without a replicate group. All ranks take part in making lanes for those.
  ExpectOneError(4, 2, "the number of replicate groups", [](const DeviceMesh& mesh, int rank) {
    Wish wish;
    wish.policy.layout = FlatKind::kRows;
    wish.policy.unused_gradients = UnusedGradients::kZero;
    if (rank >= 2) wish.parameters.erase(wish.parameters.begin() + 2);
    wish.policy.replicate_group = [&mesh, rank](const Parameter& p) {
      return p.name == "p2" ? std::nullopt : std::optional(*mesh.Group({"replicate"}, rank));
    };
    return wish;
  });
}

TEST(RankAgreement, NamesARankThatDoesNotNameItsReplicas) {
  ExpectOneError(4, 2, "rank 0 reduces gradients of parameter group 'root' over 2 ranks, but only 1 of them",
                 [](const DeviceMesh& mesh, int rank) {
                   Wish wish;
                   wish.policy.replicate_group = [&mesh, rank](const Parameter&) {
                     return rank >= 2 ? std::nullopt : std::optional(*mesh.Group({"replicate"}, rank));
                   };
                   return wish;
                 });
}

TEST(RankAgreement, NamesTheGroupWhoseShapesDTypesOrPartsDiffer) {
  const std::string differ = "0 and 1 hold shards of it";
  ExpectOneError(2, 1, Differ("a", differ, "its name, its parameters"), [](const DeviceMesh&, int rank) {
    Wish wish;
    if (rank == 1) std::swap(wish.parameters[2], wish.parameters[3]);
    return wish;
  });
  ExpectOneError(2, 1, Differ("a", differ, "dtypes"), [](const DeviceMesh&, int rank) {
    Wish wish;
    wish.policy.dtypes_of = [rank](const Parameter& p) {
      return ParameterDTypes{p.name >= "p2" && rank == 1 ? DType::kBF16 : DType::kF32};
    };
    return wish;
  });
  ExpectOneError(2, 1, Differ("a", differ, "layout, reshard_after_forward_size or mesh_of"),
                 [](const DeviceMesh&, int rank) {
                   Wish wish{PrivateImages()};
                   wish.policy.reshard_root_after_forward = true;
                   wish.policy.reshard_after_forward_size_of = [rank](const std::string& name) {
                     return name == "root" || rank == 1 ? std::optional(2) : std::nullopt;
                   };
                   return wish;
                 });
}

// Each replica has an expert of its own, with another name and another number of elements.
Wish WithExpert(FlatKind layout, const DeviceMesh& mesh, int rank) {
  Wish wish;
  const Shape expert = rank < 2 ? Shape{8, 8} : Shape{4, 8};
  wish.parameters[2] = std::make_shared<Parameter>(*MakeParameters({expert})[0]);
  wish.parameters[2]->name = rank < 2 ? "expert0" : "expert1";
  wish.policy.layout = layout;
  wish.policy.replicate_group = [&mesh, rank](const Parameter& p) {
    return p.name.starts_with("expert") ? std::nullopt : std::optional(*mesh.Group({"replicate"}, rank));
  };
  return wish;
}

TEST(RankAgreement, LeavesToEachReplicaWhatOnlyItHolds) {
  for (const FlatKind layout : {FlatKind::kRows, FlatKind::kPerParameter}) {
    ExpectAgreement(4, 2,
                    [layout](const DeviceMesh& mesh, int rank) { return WithExpert(layout, mesh, rank); });
  }
}

TEST(RankAgreement, NamesTheGroupWhoseReplicasHoldOtherElements) {
  // The range of p3 in a shard depends on the size of the expert.
  ExpectOneError(
      4, 2, Differ("a", "0 and 2 reduce its gradients together", "the elements in their shards"),
      [](const DeviceMesh& mesh, int rank) { return WithExpert(FlatKind::kContiguous, mesh, rank); });
}

TEST(RankAgreement, NamesTheGroupWhoseNumbersOfParametersDiffer) {
  const auto wish_of = [](UnusedGradients unused, const DeviceMesh& mesh, int rank) {
    Wish wish = WithExpert(FlatKind::kRows, mesh, rank);
    wish.policy.unused_gradients = unused;
    if (rank < 2) return wish;
    wish.parameters.push_back(std::make_shared<Parameter>(*MakeParameters({{8, 8}})[0]));
    wish.parameters.back()->name = "expert2";
    return wish;
  };
  ExpectOneError(
      4, 2, Differ("a", "0 and 2 agree on its used parameters", "its number of parameters"),
      [&](const DeviceMesh& mesh, int rank) { return wish_of(UnusedGradients::kNone, mesh, rank); });
  ExpectAgreement(
      4, 2, [&](const DeviceMesh& mesh, int rank) { return wish_of(UnusedGradients::kZero, mesh, rank); });
}

TEST(RankAgreement, LeavesRegatherGroupsToEachReplica) {
  const auto wish_of = [](int size) {
    Wish wish{PrivateImages()};
    wish.policy.reshard_after_forward_size = size;
    return wish;
  };
  ExpectAgreement(8, 2, [&](const DeviceMesh&, int rank) { return wish_of(rank < 4 ? 2 : 4); });
  ExpectOneError(4, 2, "the number of regather sizes is 1 on rank 0, but 0 on rank 2",
                 [&](const DeviceMesh&, int rank) { return wish_of(rank < 2 ? 2 : 0); });
}

TEST(RankAgreement, NamesTheOptionThatDiffers) {
  const auto expect = [](const std::string& message, const std::function<void(ShardingPolicy&, int)>& set) {
    ExpectOneError(4, 2, message, [&](const DeviceMesh&, int rank) {
      Wish wish;
      set(wish.policy, rank);
      return wish;
    });
  };
  const std::string remedy = " alike on all ranks";
  expect(
      "unused_gradients is none on rank 0, but zero on rank 1: set ShardingPolicy::unused_gradients" + remedy,
      [](ShardingPolicy& policy, int rank) {
        if (rank == 1) policy.unused_gradients = UnusedGradients::kZero;
      });
  expect("shard_optimizer_over_replicas is off on rank 0, but on on rank 2",
         [](ShardingPolicy& policy, int rank) { policy.shard_optimizer_over_replicas = rank == 2; });
  expect("wire_compression is none on rank 0, but lossless on rank 1", [](ShardingPolicy& policy, int rank) {
    if (rank == 1) policy.wire_compression = WireCompression::kLossless;
  });
  expect("the residency of images is in place (if they have room) on rank 0, but private on rank 3",
         [](ShardingPolicy& policy, int rank) {
           if (rank == 3) policy.node_shared = NodeShared::kOff;
         });
  expect("the residency of images is in place on rank 0, but in place (if they have room) on rank 1",
         [](ShardingPolicy& policy, int rank) {
           policy.node_shared = rank == 0 ? NodeShared::kOn : NodeShared::kAuto;
         });
  // Options that order the collectives of a shard group and those of its replicas.
  expect("reshard_after_forward is on on rank 0, but off on rank 2",
         [](ShardingPolicy& policy, int rank) { policy.reshard_after_forward = rank < 2; });
  expect("reshard_root_after_forward is off on rank 0, but on on rank 1",
         [](ShardingPolicy& policy, int rank) { policy.reshard_root_after_forward = rank == 1; });
  expect("prefetch_depth is 1 on rank 0, but 0 on rank 2",
         [](ShardingPolicy& policy, int rank) { policy.prefetch_depth = rank < 2 ? 1 : 0; });
  expect("max_reduce_scatters is 2 on rank 0, but 0 on rank 2",
         [](ShardingPolicy& policy, int rank) { policy.max_reduce_scatters = rank < 2 ? 2 : 0; });
  const std::string shards = Differ("root", "0 and 1 hold shards of it", "");
  expect(shards + "gradient_divide_factor",
         [](ShardingPolicy& policy, int rank) { policy.gradient_divide_factor = rank == 1 ? 2 : 4; });
}

TEST(RankAgreement, EndsWithTheErrorOfTheRankThatCannotPlan) {
  // Each of them fails on rank 0 alone. Its peers do not wait for it until a timeout.
  ExpectOneError(4, 2, "the replicate group of parameter 'p0', ranks 1 3,", [](const DeviceMesh&, int rank) {
    Wish wish;
    if (rank == 0)
      wish.policy.replicate_group = [](const Parameter&) {
        return std::optional(GroupOf("other", {1, 3}, 0));
      };
    return wish;
  });
  ExpectOneError(2, 1, "prefetch_depth is 9", [](const DeviceMesh&, int rank) {
    Wish wish;
    if (rank == 0) wish.policy.prefetch_depth = 9;
    return wish;
  });
  ExpectOneError(2, 1, "sharing images on each node is required (on)", [](const DeviceMesh&, int rank) {
    Wish wish;
    wish.policy.reshard_after_forward_size = 2;
    if (rank == 0) wish.policy.node_shared = NodeShared::kOn;
    return wish;
  });
  ExpectOneError(2, 1, "shard_optimizer_over_replicas is on", [](const DeviceMesh&, int rank) {
    Wish wish;
    wish.policy.shard_optimizer_over_replicas = rank == 0;
    return wish;
  });
  ExpectOneError(2, 1, "mesh_of of parameter 'p0'", [](const DeviceMesh&, int rank) {
    Wish wish;
    if (rank == 0)
      wish.policy.mesh_of = [](const Parameter&) {
        return std::optional(*DeviceMesh::Create({{"other", 2}}, 2));
      };
    return wish;
  });
}

TEST(RankAgreement, EndsWithTheErrorOfTheRankWhoseBlocksAreWrong) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(1, 2));
    const auto shard = [&](const ModuleBlocks& blocks, ToyNet& net, const ShardingPolicy& policy) {
      return FullyShard(net, blocks, mesh, *engine.engine, policy, LoadInitialValues(kToySeed)).status();
    };
    ToyNet net({6, 6, 6});
    std::vector<Module*> blocks = net.blocks();
    if (bootstrap.rank() == 0) blocks.push_back(blocks[0]);
    EXPECT_THAT(shard(blocks, net, {}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("module 'layers.0' is listed twice")));
    ShardingPolicy wide;
    if (bootstrap.rank() == 0) {
      wide.dtypes_of = [](const Parameter&) { return ParameterDTypes{.master = DType::kF64}; };
    }
    EXPECT_THAT(shard(net.blocks(), net, wide),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has a master that is not f32")));
    return absl::OkStatus();
  });
}

TEST(RankAgreement, NamesTheNumbersOfGroups) {
  RunRanks(NodeMap::OneNode(2), [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
    WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(1, 2));
    ToyNet net({6, 6, 6});
    std::vector<Module*> blocks = net.blocks();
    if (bootstrap.rank() == 1) blocks.pop_back();
    EXPECT_THAT(FullyShard(net, blocks, mesh, *engine.engine, {}, LoadInitialValues(kToySeed)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("parameter group 'net': ranks 0 and 1 hold shards of it"),
                               HasSubstr("its name, its parameters"),
                               HasSubstr("first at parameter 1: rank 0 has none, rank 1 has "
                                         "'layers.1.weight' [6, 6] (trained, shard_dim 0)"))));
    return absl::OkStatus();
  });
}

// Rank 2 or 3 holds the same shard as rank 0 or 1. Frozen parameters have replicas, too.
TEST(RankAgreement, NamesTheParameterOfWhichReplicasHaveLoadedOtherValues) {
  for (const bool is_frozen : {false, true}) {
    RunRanks(NodeMap::OneNode(4), [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
      WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(2, 2));
      const Parameters p = MakeParameters({{8, 8}, {8, 8}});
      p[1]->requires_grad = !is_frozen;
      const auto shard = [&](int other_rank) {
        const ShardLoader loader = [&, other_rank](const Parameter& parameter, int64_t start, int64_t count,
                                                   float* out) {
          const bool differs = bootstrap.rank() == other_rank && &parameter == p[1].get();
          return LoadIndices(parameter, differs ? start + 1 : start, count, out);
        };
        return ShardedGroups::Create(*engine.engine, mesh, {{"root", -1, {p[0]}}, {"a", 0, {p[1]}}}, {},
                                     loader);
      };
      EXPECT_THAT(
          shard(3),
          StatusIs(absl::StatusCode::kInvalidArgument,
                   HasSubstr("rank 3 has other initial values of parameter 'p1' than rank 1, of which "
                             "it is a replica")));
      EXPECT_OK(shard(-1));
      return absl::OkStatus();
    });
  }
}

}  // namespace
}  // namespace weft::testing
