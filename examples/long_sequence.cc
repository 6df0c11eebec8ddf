// Context parallelism: one sequence split over all MPI ranks. Each rank computes a Llama on its own tokens,
// and ring attention exchanges keys and values among the ranks. The losses are those of one rank.
#include <cstdio>
#include <weft/weft.h>

using namespace weft;

constexpr int64_t kTokens = 500, kPeriod = 150;  // Length and period of the pattern to learn.

// The whole sequence [1, kTokens] from position `first` of the pattern, on every rank.
Tensor Pattern(int64_t first) {
  Tensor tokens = Tensor::Empty(DType::kI32, {1, kTokens});
  for (int64_t i = 0; i < kTokens; ++i) {
    const int64_t position = (first + i) % kPeriod;
    tokens.As<int32_t>()[i] = static_cast<int32_t>(position * position % 61);
  }
  return tokens;
}

absl::Status Train(Bootstrap& ranks) {
  WEFT_ASSIGN_OR_RETURN(auto heap, NodeHeap::Create(ranks, {}));
  WEFT_ASSIGN_OR_RETURN(auto engine, CommEngine::Create(ranks, *heap));
  WEFT_ASSIGN_OR_RETURN(auto mesh, DeviceMesh::Create({{"context", -1}}, ranks.size()));
  WEFT_ASSIGN_OR_RETURN(auto net, LlamaModel::Create(LlamaConfig{}));
  // Ring attention. Each rank has one chunk of the front and one of the back, which balances the causal mask.
  const ContextScheme scheme = ContextScheme::Ring(RingRotation::kShift, LoadBalance::kHeadTail);
  WEFT_ASSIGN_OR_RETURN(auto context, ContextParallel::Create(*engine, *net, mesh, {"context"}, scheme));
  WEFT_RETURN_IF_ERROR(ParallelizeLlama(*context, *net));
  WEFT_ASSIGN_OR_RETURN(const auto layout, SequenceLayout::Create({kTokens}, scheme.Split(ranks.size())));
  WEFT_ASSIGN_OR_RETURN(auto sharder, BufferSharder::Create(*engine, context->group(), net.get()));
  // The parameters are sharded over the same ranks.
  WEFT_ASSIGN_OR_RETURN(auto model, FullyShard(*net, net->units(), mesh, *engine, {}, LoadInitialValues(0)));
  ShardedAdamW optimizer(model->Shards(), {.lr = 1e-3, .weight_decay = 0});
  Tensor ids = Pattern(0), targets = Pattern(1);
  for (int step = 1; step <= 40; ++step) {
    // While `scope` lives, ids and targets hold this rank's part. SetSequence states its positions.
    WEFT_ASSIGN_OR_RETURN(const auto scope, sharder->ShardBuffers(layout, {&ids, &targets}, {1, 1}));
    Invocation pass(/*gradients=*/true, /*loss_scale=*/1.0F / kTokens);
    pass.SetSequence(layout.Parts(ranks.rank()));
    WEFT_ASSIGN_OR_RETURN(const Tensors losses, net->Forward(pass, {ids, targets}));
    WEFT_RETURN_IF_ERROR(net->Backward(pass, {Tensor::Scalar(1.0F)}).status());
    WEFT_RETURN_IF_ERROR(optimizer.Step(model->Shards()));
    model->ZeroGradients();
    float loss = *losses[0].As<float>();  // This rank's part. The sum over ranks is the mean.
    WEFT_RETURN_IF_ERROR(model->AllReduceScalars("loss", &loss, DType::kF32, 1, ReduceOp::kSum));
    if (ranks.rank() == 0 && step % 10 == 0) std::printf("step %d  loss %.5f\n", step, loss);
  }
  return absl::OkStatus();
}

int main() {
  const auto ranks = MakeMpiBootstrap();
  const absl::Status status = ranks.ok() ? Train(**ranks) : ranks.status();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
