// A block whose sequence is split over ranks, and the same block on one rank as the reference.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/comm/support/engine_fixture.h"
#include "tests/context_parallel/support/toy_block.h"
#include "weft/context_parallel/context_parallel.h"
#include "weft/context_parallel/sequence_layout.h"
#include "weft/core/status.h"
#include "weft/mesh/device_mesh.h"
#include "weft/nn/materialize.h"

namespace weft::testing {

// Tensor [batch, tokens, dim] in f32 with different values of both signs, determined by `salt`.
Tensor SomeTensor(int64_t batch, int64_t tokens, int64_t dim, uint64_t salt);
// Copy of the tokens of one rank.
Tensor PartOf(const Tensor& whole, const SequenceLayout& layout, int rank);

// Results of one forward and backward pass.
struct PassResult {
  Tensor y;
  Tensor dx;
  std::vector<float> weight_gradients;  // Those of all parameters, end to end.
};
bool SameBits(const PassResult& a, const PassResult& b);
// Fail if the largest difference is more than `tolerance` of the largest expected value.
constexpr float kTolerance = 2e-5F;
absl::Status CheckClose(std::string_view what, const Tensor& values, const Tensor& expected);
absl::Status CheckClose(std::string_view what, const std::vector<float>& values,
                        const std::vector<float>& expected, float tolerance = kTolerance);

// Several calls of a block in sequence, forward and backward.
absl::StatusOr<Tensor> ForwardCalls(Module& block, Invocation& invocation, const Tensor& x, int calls);
absl::StatusOr<Tensor> BackwardCalls(Module& block, Invocation& invocation, const Tensor& dy, int calls);
// Both; rounds x and dy from f32 to `dtype`. Leaves `weight_gradients` empty.
absl::StatusOr<PassResult> PassOf(Module& block, DType dtype, std::shared_ptr<const SequenceParts> sequence,
                                  const Tensor& x, const Tensor& dy, int calls);
// The gradients of all parameters, concatenated.
std::vector<float> WeightGradients(Module& block);

// A block with materialized parameters on this rank.
template <typename Block>
class BlockModel {
 public:
  explicit BlockModel(const typename Block::Options& options)
      : block_("block", options), parameters_(block_, /*seed=*/7, options.dtype, DType::kF32) {}

  Block& block() { return block_; }
  // Returns and clears the gradients of all backward passes since the last call.
  std::vector<float> TakeWeightGradients() {
    std::vector<float> gradients = WeightGradients(block_);
    parameters_.ClearGradients();
    return gradients;
  }
  // Calls the block `calls` times in sequence.
  absl::StatusOr<Tensor> Forward(Invocation& invocation, const Tensor& x, int calls = 1) {
    return ForwardCalls(block_, invocation, x, calls);
  }
  absl::StatusOr<Tensor> Backward(Invocation& invocation, const Tensor& dy, int calls = 1) {
    return BackwardCalls(block_, invocation, dy, calls);
  }
  // Rounds x and dy from f32 to the dtype of the model.
  absl::StatusOr<PassResult> Pass(std::shared_ptr<const SequenceParts> sequence, const Tensor& x,
                                  const Tensor& dy, int calls = 1) {
    WEFT_ASSIGN_OR_RETURN(PassResult result,
                          PassOf(block_, block_.options().dtype, std::move(sequence), x, dy, calls));
    result.weight_gradients = TakeWeightGradients();
    return result;
  }

 private:
  Block block_;
  MaterializedParameters parameters_;
};
using ToyModel = BlockModel<ToyBlock>;

// Sums element by element over the ranks.
absl::StatusOr<std::vector<float>> SumOverRanks(Bootstrap& bootstrap, const std::vector<float>& values);
// Compares the results of a rank with its part of those of one rank. Weight gradients are summed over the
// ranks.
absl::Status CheckPass(Bootstrap& bootstrap, const std::string& where, const SequenceLayout& layout,
                       const PassResult& result, const PassResult& expected);

// Runs two microbatches one after the other, then with the second forward before the first backward, and
// compares the bits. `part(salt)` is this rank's part of an input or an output gradient.
template <typename Block, typename Part>
absl::Status CheckMicrobatchesInFlight(BlockModel<Block>& model,
                                       const std::shared_ptr<const SequenceParts>& sequence,
                                       const Part& part) {
  WEFT_ASSIGN_OR_RETURN(const PassResult first, model.Pass(sequence, part(1), part(2)));
  WEFT_ASSIGN_OR_RETURN(const PassResult second, model.Pass(sequence, part(3), part(4)));
  Invocation a;
  Invocation b;
  a.SetSequence(sequence);
  b.SetSequence(sequence);
  PassResult mixed_a;
  PassResult mixed_b;
  WEFT_ASSIGN_OR_RETURN(mixed_a.y, model.Forward(a, part(1)));
  WEFT_ASSIGN_OR_RETURN(mixed_b.y, model.Forward(b, part(3)));
  WEFT_ASSIGN_OR_RETURN(mixed_a.dx, model.Backward(a, part(2)));
  mixed_a.weight_gradients = model.TakeWeightGradients();
  WEFT_ASSIGN_OR_RETURN(mixed_b.dx, model.Backward(b, part(4)));
  mixed_b.weight_gradients = model.TakeWeightGradients();
  if (!SameBits(mixed_a, first)) return absl::InternalError("the first microbatch has other bits");
  return SameBits(mixed_b, second) ? absl::OkStatus()
                                   : absl::InternalError("the second microbatch has other bits");
}

// One rank of a model whose sequence is split over all ranks of the bootstrap.
class SplitModel {
 public:
  static absl::StatusOr<std::unique_ptr<SplitModel>> Make(Bootstrap& bootstrap, const ContextScheme& scheme,
                                                          const ToyBlockOptions& options);
  // Splits the block's attentions.
  absl::Status Parallelize(const AttentionNeighbors& neighbors);

  Bootstrap& bootstrap() { return bootstrap_; }
  EngineFixture& fixture() { return fixture_; }
  ToyModel& model() { return *model_; }
  ContextParallel& context() { return *context_; }
  SequenceLayout Layout(int64_t tokens) const;
  // Runs one pass on this rank's part of the whole tensors.
  absl::StatusOr<PassResult> Pass(const Tensor& x, const Tensor& dy, int calls = 1);

 private:
  explicit SplitModel(Bootstrap& bootstrap) : bootstrap_(bootstrap) {}

  Bootstrap& bootstrap_;
  EngineFixture fixture_;
  std::unique_ptr<ToyModel> model_;
  std::unique_ptr<ContextParallel> context_;
};

// Input and output gradient of most tests: two rows of kTokens tokens, a prime number.
constexpr int64_t kTokens = 23;
struct Pair {
  Tensor x = SomeTensor(2, kTokens, 16, 1);
  Tensor dy = SomeTensor(2, kTokens, 16, 2);
};

// Splits all attentions, with their sources.
inline absl::Status SplitFromSources(SplitModel& split) {
  return split.Parallelize(split.model().block().Neighbors());
}

// Schemes for `ranks` ranks, with every balance and rotation.
std::vector<ContextScheme> SchemesFor(int ranks);

// Compares outputs, input gradients and weight gradients of the split block with those of one rank.
absl::Status CheckAgainstOneRank(Bootstrap& bootstrap, const ContextScheme& scheme,
                                 const ToyBlockOptions& options, int64_t batch, int64_t tokens,
                                 int calls = 1);

}  // namespace weft::testing
