// Library example of README.md: a small Llama, sharded over MPI ranks, learns to count.
#include <cstdio>
#include <vector>
#include <weft/comm/comm_engine.h>
#include <weft/core/status.h>
#include <weft/memory/node_heap.h>
#include <weft/mesh/device_mesh.h>
#include <weft/mesh/mpi_bootstrap.h>
#include <weft/nn/llama.h>
#include <weft/sharding/fully_shard.h>

namespace {

constexpr int64_t kTokens = 64;
constexpr int kSteps = 20;
constexpr float kLearningRate = 0.5F;

// Token ids and their successors as targets. Each rank counts from its own rank number.
weft::Tensors CountingBatch(int rank) {
  weft::Tensor ids = weft::Tensor::Empty(weft::DType::kI32, {1, kTokens});
  weft::Tensor targets = weft::Tensor::Empty(weft::DType::kI32, {1, kTokens});
  for (int64_t i = 0; i < kTokens; ++i) {
    ids.As<int32_t>()[i] = static_cast<int32_t>((rank + i) % 10);
    targets.As<int32_t>()[i] = static_cast<int32_t>((rank + i + 1) % 10);
  }
  return {ids, targets};
}

absl::Status CheckThatItLearns(weft::Bootstrap& ranks, float first, float last) {
  if (ranks.rank() == 0) std::printf("loss of rank 0: %.3f, after %d steps %.3f\n", first, kSteps, last);
  return last < first / 2 ? absl::OkStatus() : absl::InternalError("the loss did not fall");
}

// README.md shows this function; a test compares them.
absl::Status Train(weft::Bootstrap& ranks) {
  WEFT_ASSIGN_OR_RETURN(auto heap, weft::NodeHeap::Create(ranks, {.segment_bytes = 64 << 20}));
  WEFT_ASSIGN_OR_RETURN(auto engine, weft::CommEngine::Create(ranks, *heap));
  WEFT_ASSIGN_OR_RETURN(auto mesh, weft::DeviceMesh::Create({{"replicate", 2}, {"shard", -1}}, ranks.size()));
  WEFT_ASSIGN_OR_RETURN(auto net, weft::LlamaModel::Create(weft::LlamaConfig{}));
  WEFT_ASSIGN_OR_RETURN(auto model, weft::FullyShard(*net, net->units(), mesh, *engine, /*policy=*/{},
                                                     weft::LoadInitialValues(/*seed=*/0)));
  float first = 0, last = 0;
  for (int step = 0; step < kSteps; ++step) {
    weft::Invocation pass(/*gradients=*/true, /*loss_scale=*/1.0F / (kTokens * ranks.size()));
    WEFT_ASSIGN_OR_RETURN(auto loss, net->Forward(pass, CountingBatch(ranks.rank())));
    WEFT_RETURN_IF_ERROR(net->Backward(pass, {weft::Tensor::Scalar(1.0F)}).status());
    WEFT_ASSIGN_OR_RETURN(auto norm, model->ClipGradNorm(1.0));
    for (const weft::ShardView& shard : model->Shards()) {  // This rank's part of every parameter.
      for (int64_t i = 0; i < shard.elements(); ++i)
        shard.data[i] -= kLearningRate * static_cast<float>(norm.factor) * shard.grad[i];
    }
    model->ZeroGradients();
    last = *loss[0].As<float>() * ranks.size();
    if (step == 0) first = last;
  }
  return CheckThatItLearns(ranks, first, last);
}

}  // namespace

int main() {
  auto ranks = weft::MakeMpiBootstrap();
  const absl::Status status = ranks.ok() ? Train(**ranks) : ranks.status();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
