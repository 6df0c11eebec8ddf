#include "tests/context_parallel/support/sparse_llama.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tests/support/tiny_llama.h"
#include "weft/context_parallel/sequence_parts.h"
#include "weft/core/status.h"

namespace weft::testing {
namespace {

constexpr float kSparseTolerance = 1e-5F;

Tensor SomeTokens(const SparseCase& sparse, uint32_t salt) {
  Tensor tokens = Tensor::Empty(DType::kI32, {sparse.batch, sparse.tokens()});
  std::mt19937 random(salt);
  for (int64_t i = 0; i < tokens.elements(); ++i) {
    tokens.As<int32_t>()[i] = static_cast<int32_t>(random() % static_cast<uint32_t>(TinyLlama().vocab_size));
  }
  return tokens;
}

std::unique_ptr<LlamaModel> MakeModel(const SparseCase& sparse) {
  auto model = LlamaModel::Create(SparseConfig(sparse));
  WEFT_CHECK(model.ok(), ToStd(model.status().message()));
  return *std::move(model);
}

}  // namespace

int64_t SparseCase::tokens() const { return std::accumulate(documents.begin(), documents.end(), int64_t{0}); }

std::string SparseCase::Describe() const {
  return absl::StrCat("documents of ", absl::StrJoin(documents, ", "), ", ", ToAbsl(Name(balance)),
                      ", batch ", batch, ", top ", top_k, warm_up ? ", warm-up" : "");
}

LlamaConfig SparseConfig(const SparseCase& sparse) {
  LlamaConfig config = TinyLlama();
  config.init_stddev = 0.3F;
  config.sparse_attention = SparseAttentionConfig{.top_k = sparse.top_k, .index_heads = 3, .index_dim = 8};
  return config;
}

AttentionShape SparseShape(const SparseCase& sparse) {
  const LlamaConfig config = SparseConfig(sparse);
  return {.batch = sparse.batch,
          .heads = config.heads,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .value_dim = config.head_dim,
          .dtype = sparse.dtype,
          .index_dim = config.sparse_attention->index_dim};
}

bool SameBits(const SparseResult& a, const SparseResult& b) {
  return a.loss == b.loss && a.indexer_loss == b.indexer_loss && a.gradients == b.gradients;
}

SparseLlama::SparseLlama(const SparseCase& sparse)
    : sparse_(sparse), model_(MakeModel(sparse)), parameters_(*model_, 7, sparse.dtype, DType::kF32) {}

absl::StatusOr<SparseResult> SparseLlama::Pass(const SequenceLayout& layout, int rank) {
  const float factor = 1.0F / static_cast<float>(sparse_.batch * sparse_.tokens());
  Invocation invocation(/*gradients=*/true, factor);
  invocation.SetSequence(layout.Parts(rank));
  IndexerPassOf(invocation).warm_up = sparse_.warm_up;
  IndexerPassOf(invocation).loss_factor = factor;
  WEFT_ASSIGN_OR_RETURN(Tensor ids, ExtractPart(SomeTokens(sparse_, 1).view(), 1, layout, rank));
  WEFT_ASSIGN_OR_RETURN(Tensor targets, ExtractPart(SomeTokens(sparse_, 2).view(), 1, layout, rank));
  WEFT_ASSIGN_OR_RETURN(const Tensors losses,
                        model_->Forward(invocation, {std::move(ids), std::move(targets)}));
  WEFT_RETURN_IF_ERROR(model_->Backward(invocation, {Tensor::Scalar(1.0F)}).status());
  WEFT_CHECK(invocation.empty(), "a backward left something saved");
  SparseResult result{.loss = *losses[0].As<float>(), .indexer_loss = IndexerPassOf(invocation).loss};
  for (const auto& parameter : model_->AllParameters()) {
    const auto* values = parameter->grad.As<float>();
    result.names.push_back(parameter->name);
    result.gradients.emplace_back(values, values + parameter->elements());
  }
  parameters_.ClearGradients();
  return result;
}

absl::StatusOr<std::unique_ptr<SplitSparseLlama>> SplitSparseLlama::Make(Bootstrap& bootstrap,
                                                                         const SparseCase& sparse,
                                                                         bool has_sources) {
  const int ranks = bootstrap.size();
  const ContextScheme scheme = ContextScheme::Gather(sparse.balance);
  WEFT_ASSIGN_OR_RETURN(EngineFixture fixture, EngineFixture::Make(bootstrap));
  WEFT_ASSIGN_OR_RETURN(SequenceLayout layout, SequenceLayout::Create(sparse.documents, scheme.Split(ranks)));
  auto split = std::make_unique<SplitSparseLlama>(
      SplitSparseLlama{std::move(fixture), SparseLlama(sparse), nullptr, std::move(layout)});
  LlamaModel& model = split->llama.model();
  WEFT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Create({{"context", ranks}}, ranks));
  WEFT_ASSIGN_OR_RETURN(split->context,
                        ContextParallel::Create(*split->fixture.engine, model, mesh, {"context"}, scheme));
  if (has_sources) {
    WEFT_RETURN_IF_ERROR(ParallelizeLlama(*split->context, model));
    return split;
  }
  for (const DecoderBlock* block : model.blocks()) {
    WEFT_RETURN_IF_ERROR(split->context->Parallelize(*block->self_attention().sparse_attention()));
  }
  return split;
}

absl::Status CheckSparseAgainstOneRank(Bootstrap& bootstrap, const SparseCase& sparse) {
  WEFT_ASSIGN_OR_RETURN(const SequenceLayout whole, SequenceLayout::Create(sparse.documents, {}));
  WEFT_ASSIGN_OR_RETURN(const SparseResult expected, SparseLlama(sparse).Pass(whole, 0));
  WEFT_ASSIGN_OR_RETURN(const auto split, SplitSparseLlama::Make(bootstrap, sparse));
  WEFT_ASSIGN_OR_RETURN(const SparseResult result, split->Pass());
  const auto check = [&](const std::string& what, const std::vector<float>& part,
                         const std::vector<float>& values) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(const std::vector<float> sum, SumOverRanks(bootstrap, part));
    return CheckClose(absl::StrCat(sparse.Describe(), ": ", what), sum, values, kSparseTolerance);
  };
  WEFT_RETURN_IF_ERROR(check("the losses", {result.loss, static_cast<float>(result.indexer_loss)},
                             {expected.loss, static_cast<float>(expected.indexer_loss)}));
  for (size_t i = 0; i < expected.gradients.size(); ++i) {
    const std::vector<float>& gradient = expected.gradients[i];
    if (std::count(gradient.begin(), gradient.end(), 0.0F) == static_cast<int64_t>(gradient.size())) {
      return absl::InternalError(absl::StrCat(expected.names[i], " has no gradient"));
    }
    WEFT_RETURN_IF_ERROR(check(expected.names[i], result.gradients[i], gradient));
  }
  return absl::OkStatus();
}

}  // namespace weft::testing
