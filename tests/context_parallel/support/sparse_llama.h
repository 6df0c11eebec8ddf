// A Llama with sparse attention whose sequence is split over ranks, and the same model on one rank as the
// reference.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/context_parallel/support/split_model.h"
#include "weft/context_parallel/byte_formulas.h"
#include "weft/nn/llama.h"

namespace weft::testing {

struct SparseCase {
  std::vector<int64_t> documents = {23};
  LoadBalance balance = LoadBalance::kHeadTail;
  int64_t batch = 2;
  int64_t top_k = 64;    // More than the keys: attention to all of them.
  bool warm_up = false;  // Dense attention, see IndexerPass.
  DType dtype = DType::kF32;

  int64_t tokens() const;
  std::string Describe() const;
};

// The sizes of the model, for attention and for its byte formulas.
LlamaConfig SparseConfig(const SparseCase& sparse);
AttentionShape SparseShape(const SparseCase& sparse);

struct SparseResult {
  float loss = 0;                                  // This rank's part.
  double indexer_loss = 0;                         // This rank's part.
  std::vector<std::string> names = {};             // Those of the parameters.
  std::vector<std::vector<float>> gradients = {};  // [parameter]
};
bool SameBits(const SparseResult& a, const SparseResult& b);

// One rank of the model.
class SparseLlama {
 public:
  explicit SparseLlama(const SparseCase& sparse);

  LlamaModel& model() { return *model_; }
  // One pass over the tokens of `rank`.
  absl::StatusOr<SparseResult> Pass(const SequenceLayout& layout, int rank);

 private:
  SparseCase sparse_;
  std::unique_ptr<LlamaModel> model_;
  MaterializedParameters parameters_;
};

// The same over all ranks of the bootstrap.
struct SplitSparseLlama {
  EngineFixture fixture;
  SparseLlama llama;
  std::unique_ptr<ContextParallel> context;
  SequenceLayout layout;

  // `has_sources`: the modules that make the keys launch their exchanges. Otherwise the attentions do.
  static absl::StatusOr<std::unique_ptr<SplitSparseLlama>> Make(Bootstrap& bootstrap,
                                                                const SparseCase& sparse,
                                                                bool has_sources = true);
  absl::StatusOr<SparseResult> Pass() { return llama.Pass(layout, context->group().group_rank); }
};

// Compares losses and the gradient of every parameter with those of one rank, to 1e-5 of the largest value.
absl::Status CheckSparseAgainstOneRank(Bootstrap& bootstrap, const SparseCase& sparse);

}  // namespace weft::testing
