// Ranks that describe their parameter groups differently: all of them get one error that names the group.
#include <functional>
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

// What one rank asks for. The first group has p0 and p1, the second p2 and p3, each of shape [8, 8].
struct Wish {
  ShardingPolicy policy;
  Parameters parameters = MakeParameters({{8, 8}, {8, 8}, {8, 8}, {8, 8}});
};
using WishOf = std::function<Wish(const DeviceMesh& mesh, int rank)>;

absl::Status Shard(Bootstrap& bootstrap, int replicas, const WishOf& wish_of) {
  WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
  WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, MakeToyMesh(replicas, bootstrap.size() / replicas));
  const auto [policy, p] = wish_of(mesh, bootstrap.rank());
  return ShardedGroups::Create(*engine.engine, mesh, {{"root", -1, {p[0], p[1]}}, {"a", 0, {p[2], p[3]}}},
                               policy, LoadIndices)
      .status();
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
  ExpectOneError(2, 1, Differ("root", "0 and 1 hold shards of it", "requires_grad or trained_later"),
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
                   Wish wish;
                   wish.policy.reshard_after_forward_size_of = [rank](const std::string& name) {
                     return name == "a" && rank == 1 ? std::optional(2) : std::nullopt;
                   };
                   return wish;
                 });
}

TEST(RankAgreement, LeavesToEachReplicaWhatOnlyItHolds) {
  // Experts: each replica has one of its own, with another name and another number of elements.
  ExpectAgreement(4, 2, [](const DeviceMesh& mesh, int rank) {
    Wish wish;
    const Shape expert = rank < 2 ? Shape{8, 8} : Shape{4, 8};
    wish.parameters[2] = std::make_shared<Parameter>(*MakeParameters({expert})[0]);
    wish.parameters[2]->name = rank < 2 ? "expert0" : "expert1";
    wish.policy.replicate_group = [&mesh, rank](const Parameter& p) {
      return p.name.starts_with("expert") ? std::nullopt : std::optional(*mesh.Group({"replicate"}, rank));
    };
    return wish;
  });
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
                               HasSubstr("its name, its parameters"))));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
