// Dropout in a sharded model: the masks, and so the gradients, are those of one rank on every mesh.
#include <cmath>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sharding/support/toy_training.h"
#include "tests/support/thread_ranks.h"
#include "weft/nn/dropout.h"
#include "weft/nn/linear.h"
#include "weft/nn/sequential.h"

namespace weft::testing {
namespace {

constexpr int64_t kSamples = 4, kTokens = 6, kFeatures = 8;

struct Mesh {
  int replicate, shard, context;
  bool checkpointing = false;

  int ranks() const { return replicate * shard * context; }
};

// Gradient norms of the steps [first, end), of half the sum of squared outputs.
absl::StatusOr<std::vector<double>> Norms(Bootstrap& bootstrap, const Mesh& mesh, int first, int end) {
  WEFT_ASSIGN_OR_RETURN(const RankEngine engine, MakeToyRank(bootstrap));
  WEFT_ASSIGN_OR_RETURN(const DeviceMesh ranks, MakeToyMesh(mesh.replicate, mesh.shard, mesh.context));
  Sequential net("net");
  auto& block = net.Add<Sequential>("block");
  block.Add<Linear>("up", kFeatures, 12, Initializer{.stddev = 0.5F});
  block.Add<Dropout>("drop", 0.5F);
  block.Add<Linear>("down", 12, kFeatures, Initializer{.stddev = 0.5F});
  block.SetActivationCheckpointing(mesh.checkpointing);
  WEFT_ASSIGN_OR_RETURN(const auto model, FullyShard(net, net.children(), ranks, *engine.engine, {},
                                                     LoadInitialValues(kToySeed)));
  const int64_t samples = kSamples / (mesh.replicate * mesh.shard);
  const int64_t tokens = kTokens / mesh.context;
  const int64_t first_sample = bootstrap.rank() / mesh.context * samples;
  SequenceParts parts{{}, bootstrap.rank() % mesh.context};
  for (int part = 0; part < mesh.context; ++part) parts.parts.push_back({{0, part * tokens, tokens}});
  const int64_t first_token = parts.own * tokens;
  const Tensor x = Tensor::Empty(DType::kF32, {samples, tokens, kFeatures});
  for (int64_t i = 0; i < x.elements(); ++i) {
    const int64_t sample = first_sample + i / (tokens * kFeatures);
    const int64_t token = first_token + i / kFeatures % tokens;
    x.As<float>()[i] = static_cast<float>((sample * 31 + token * 7 + i % kFeatures * 3) % 11) - 5;
  }
  std::vector<double> norms;
  for (int step = first; step < end; ++step) {
    Invocation pass;
    pass.SetSequence(std::make_shared<SequenceParts>(parts));
    pass.SetRandomKey(MakeRandomKey(kToySeed, step, first_sample, samples));
    WEFT_ASSIGN_OR_RETURN(const Tensors y, net.Forward(pass, {x}));
    WEFT_RETURN_IF_ERROR(net.Backward(pass, y).status());
    WEFT_ASSIGN_OR_RETURN(const GradientNorm norm, model->ClipGradNorm(kNoClipping));
    norms.push_back(norm.norm);
    model->ZeroGradients();
  }
  return norms;
}

TEST(RandomKey, GivesTheMasksOfOneRankOnEveryMeshInRecomputedForwardsAndAtALaterStart) {
  std::vector<double> alone;
  RunRanks(NodeMap::OneNode(1), [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(alone, Norms(bootstrap, {1, 1, 1}, 0, 3));
    return absl::OkStatus();
  });
  ASSERT_EQ(alone.size(), 3U);
  EXPECT_GT(std::abs(alone[1] / alone[0] - 1), 1e-3);  // Each step has masks of its own.
  for (const Mesh& mesh :
       {Mesh{1, 2, 1}, {2, 2, 1}, {1, 1, 2}, {1, 2, 2}, {1, 1, 1, true}, {1, 2, 1, true}}) {
    RunRanks(NodeMap::OneNode(mesh.ranks()), [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const std::vector<double> norms, Norms(bootstrap, mesh, 1, 3));
      for (size_t step = 1; step < 3; ++step) {
        EXPECT_NEAR(norms[step - 1] / alone[step], 1.0, 1e-5)
            << mesh.replicate << " x " << mesh.shard << " x " << mesh.context;
      }
      return absl::OkStatus();
    });
  }
}

}  // namespace
}  // namespace weft::testing
