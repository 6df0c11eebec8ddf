// GPT-2 of Hugging Face: loads a folder, trains with parameters sharded over MPI ranks, and exports a folder.
#include <cstdio>
#include <weft/train/hf_weights.h>
#include <weft/train/safetensors.h>
#include <weft/weft.h>

using namespace weft;

constexpr int64_t kHeadDim = 64, kSamples = 4, kTokens = 24;  // GPT-2 has heads of 64 columns in all sizes.

struct Gpt2 : Sequential {
  Gpt2(Shape words, int64_t positions, int64_t layers, float dropout) : Sequential("transformer") {
    using Outputs = std::vector<Linear::Output>;
    const int64_t dim = words[1], heads = dim / kHeadDim;
    Add<Embedding>("wte", words[0], dim);
    Add<PositionEmbedding>("wpe", positions, dim);
    Add<Dropout>("drop", dropout);
    for (int64_t layer = 0; layer < layers; ++layer) {
      auto& block = Add<Sequential>(absl::StrCat("h.", layer));
      auto& attention = block.Add<Residual>("");
      attention.Add<LayerNorm>("ln_1", dim, 1e-5F);
      attention.Add<Linear>("attn.c_attn", dim, Outputs{{"weight", 3 * dim, "bias"}});
      attention.Add<SplitHeads>("attn.split", 3, heads);
      attention.Add<Attention>("attn.attention");
      attention.Add<MergeHeads>("attn.merge", heads);
      attention.Add<Linear>("attn.c_proj", dim, Outputs{{"weight", dim, "bias"}});
      attention.Add<Dropout>("attn.resid_dropout", dropout);
      auto& mlp = block.Add<Residual>("");
      mlp.Add<LayerNorm>("ln_2", dim, 1e-5F);
      mlp.Add<Linear>("mlp.c_fc", dim, Outputs{{"weight", 4 * dim, "bias"}});
      mlp.Add<Gelu>("mlp.act");
      mlp.Add<Linear>("mlp.c_proj", 4 * dim, Outputs{{"weight", dim, "bias"}});
      mlp.Add<Dropout>("mlp.dropout", dropout);
      blocks.push_back(&block);
    }
    Add<LayerNorm>("ln_f", dim, 1e-5F);
  }
  std::vector<Module*> blocks;
};

StoredTensor Stored(const Parameter& weight) {  // transformers stores c_attn, c_proj and c_fc transposed.
  return {weight.name, weight.shape.size() == 2 && weight.name.find(".c_") != std::string::npos};
}

Tensor Tokens(int64_t samples, int64_t first, int64_t shift, int64_t vocab_size) {
  Tensor tokens = Tensor::Empty(DType::kI32, {samples, kTokens});
  for (int64_t i = 0; i < tokens.elements(); ++i) {
    const int64_t sample = first + i / kTokens, position = i % kTokens + shift;
    tokens.As<int32_t>()[i] = static_cast<int32_t>((sample * 31 + position * position * 7) % vocab_size);
  }
  return tokens;
}

absl::Status Train(Bootstrap& ranks, const std::string& folder, const std::string& output, float dropout) {
  if (kSamples % ranks.size() != 0) return absl::InvalidArgumentError("run it with 1, 2 or 4 ranks");
  WEFT_ASSIGN_OR_RETURN(auto heap, NodeHeap::Create(ranks, {}));
  WEFT_ASSIGN_OR_RETURN(auto engine, CommEngine::Create(ranks, *heap));
  WEFT_ASSIGN_OR_RETURN(auto mesh, DeviceMesh::Create({{"shard", -1}}, ranks.size()));
  WEFT_ASSIGN_OR_RETURN(const auto weights, SafetensorsReader::Open(folder));
  WEFT_ASSIGN_OR_RETURN(const Shape words, weights.ShapeOf("transformer.wte.weight"));
  WEFT_ASSIGN_OR_RETURN(const Shape positions, weights.ShapeOf("transformer.wpe.weight"));
  if (words[1] % kHeadDim != 0) return absl::InvalidArgumentError("n_embd is not a multiple of 64");
  int64_t layers = 0;
  while (weights.ShapeOf(absl::StrCat("transformer.h.", layers, ".ln_1.weight")).ok()) ++layers;
  auto body = std::make_unique<Gpt2>(words, positions[0], layers, dropout);
  const auto blocks = body->blocks;
  auto head = std::make_unique<LmHeadLoss>("lm_head", body->AllParameters()[0]);  // Tied to wte.
  LanguageModel net(std::move(body), std::move(head));
  WEFT_ASSIGN_OR_RETURN(auto model, FullyShard(net, blocks, mesh, *engine, {}, LoadFromHf(folder, Stored)));
  ShardedAdamW optimizer(model->Shards(), {.lr = 1e-3});
  const int64_t samples = kSamples / ranks.size(), first = samples * ranks.rank();
  for (int step = 1; step <= 10; ++step) {
    Invocation pass(/*gradients=*/true, /*loss_scale=*/1.0F / (kSamples * kTokens));
    pass.SetRandomKey(MakeRandomKey(/*seed=*/0, step, first, samples));
    const auto tokens = [&](int64_t shift) {
      return Tokens(samples, step * kSamples + first, shift, words[0]);
    };
    WEFT_ASSIGN_OR_RETURN(const Tensors losses, net.Forward(pass, {tokens(0), tokens(1)}));
    WEFT_RETURN_IF_ERROR(net.Backward(pass, {Tensor::Scalar(1.0F)}).status());
    WEFT_ASSIGN_OR_RETURN(const GradientNorm norm, model->ClipGradNorm(kNoClipping));
    WEFT_RETURN_IF_ERROR(optimizer.Step(*model));
    model->ZeroGradients();
    float loss = *losses[0].As<float>();  // This rank's part of the mean.
    WEFT_RETURN_IF_ERROR(model->AllReduceScalars("loss", &loss, DType::kF32, 1, ReduceOp::kSum));
    if (ranks.rank() == 0) std::printf("step %d  loss %.6f  norm %.6f\n", step, loss, norm.norm);
  }
  return ExportToHf(ranks, *model, output, {.source = folder, .stored = Stored});
}

int main(int argc, char** argv) {  // gpt2 FOLDER OUTPUT DROPOUT
  const auto ranks = MakeMpiBootstrap();
  float dropout = 0;
  const bool is_usable = argc == 4 && absl::SimpleAtof(argv[3], &dropout);
  absl::Status status = ranks.status();
  if (ranks.ok() && is_usable) status = Train(**ranks, argv[1], argv[2], dropout);
  if (!is_usable) status = absl::InvalidArgumentError("usage: gpt2 FOLDER OUTPUT DROPOUT (a number)");
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
