// A block whose sequence is split over ranks, and the same on one rank to hold it against.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/comm/support/engine_fixture.h"
#include "tests/context_parallel/toy_block.h"
#include "weft/context_parallel/context_parallel.h"
#include "weft/context_parallel/sequence_layout.h"
#include "weft/mesh/device_mesh.h"
#include "weft/nn/materialize.h"

namespace weft::testing {

// [batch, tokens, dim] in f32, each element another value, of both signs; the same for the same salt.
Tensor SomeTensor(int64_t batch, int64_t tokens, int64_t dim, uint64_t salt);
// The tokens of one rank.
Tensor PartOf(const Tensor& whole, const SequenceLayout& layout, int rank);

// What one pass forward and backward gives.
struct PassResult {
  Tensor y;
  Tensor dx;
  std::vector<float> weight_gradients;  // Of all parameters, end to end.
};
bool SameBits(const PassResult& a, const PassResult& b);
// Fails if the largest difference is more than 2e-5 of the largest expected value.
absl::Status CheckClose(std::string_view what, const Tensor& values, const Tensor& expected);

// A model that has its weights, on one rank.
class ToyModel {
 public:
  explicit ToyModel(const ToyBlockOptions& options)
      : block_("block", options), parameters_(block_, /*seed=*/7, options.dtype, DType::kF32) {}

  ToyBlock& block() { return block_; }
  // Of all backwards since the last call.
  std::vector<float> TakeWeightGradients();
  // The block, `calls` times one behind the other.
  absl::StatusOr<Tensor> Forward(Invocation& invocation, const Tensor& x, int calls = 1);
  absl::StatusOr<Tensor> Backward(Invocation& invocation, const Tensor& dy, int calls = 1);
  // x and dy in f32 are rounded to the model's dtype.
  absl::StatusOr<PassResult> Pass(std::shared_ptr<const SequenceParts> sequence, const Tensor& x,
                                  const Tensor& dy, int calls = 1);

 private:
  ToyBlock block_;
  MaterializedParameters parameters_;
};

// A rank of a group that shares the sequence: all ranks of the bootstrap.
class SplitModel {
 public:
  static absl::StatusOr<std::unique_ptr<SplitModel>> Make(Bootstrap& bootstrap, const ContextScheme& scheme,
                                                          const ToyBlockOptions& options);
  // Splits the block's attentions.
  absl::Status Parallelize(const AttentionNeighbours& neighbours);

  Bootstrap& bootstrap() { return bootstrap_; }
  EngineFixture& fixture() { return fixture_; }
  ToyModel& model() { return *model_; }
  ContextParallel& context() { return *context_; }
  SequenceLayout Layout(int64_t tokens) const;
  // One pass of this rank's part of the whole tensors.
  absl::StatusOr<PassResult> Pass(const Tensor& x, const Tensor& dy, int calls = 1);
  // The sum over ranks.
  absl::StatusOr<std::vector<float>> SumOverRanks(const std::vector<float>& values);

 private:
  explicit SplitModel(Bootstrap& bootstrap) : bootstrap_(bootstrap) {}

  Bootstrap& bootstrap_;
  EngineFixture fixture_;
  std::unique_ptr<ToyModel> model_;
  std::unique_ptr<ContextParallel> context_;
};

// What most tests put through a block: two rows of kTokens tokens, which no number of ranks divides.
constexpr int64_t kTokens = 23;
struct Pair {
  Tensor x = SomeTensor(2, kTokens, 16, 1);
  Tensor dy = SomeTensor(2, kTokens, 16, 2);
};

// With the sources that the block knows.
inline absl::Status SplitFromSources(SplitModel& split) {
  return split.Parallelize(split.model().block().Neighbours());
}

// All schemes that a number of ranks allows, with every balance and rotation.
std::vector<ContextScheme> SchemesFor(int ranks);

// Fails unless the split block gives what one rank gives, for outputs, input gradients and weight gradients.
absl::Status CheckAgainstOneRank(Bootstrap& bootstrap, const ContextScheme& scheme,
                                 const ToyBlockOptions& options, int64_t batch, int64_t tokens,
                                 int calls = 1);

}  // namespace weft::testing
