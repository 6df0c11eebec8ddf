// A user-defined model, sharded over MPI ranks: an MLP-Mixer learns to rotate images by 180 degrees.
#include <cmath>
#include <cstdio>
#include <weft/weft.h>

using namespace weft;
constexpr int64_t kImages = 16, kPatches = 8, kChannels = 12, kPixels = kPatches * kChannels;

struct Mixer : Sequential {
  Mixer() : Sequential("mixer") {
    for (const char* name : {"block0", "block1", "block2"}) {
      auto& block = Add<Sequential>(name);
      auto& patches = block.Add<Residual>("patches");
      patches.Add<RmsNorm>("norm", kChannels, 1e-5F);
      patches.Add<Transpose>("swap");
      patches.Add<Mlp>("mlp", kPatches, 4 * kPatches, Initializer{.stddev = 0.2F});
      patches.Add<Transpose>("swap_back");
      auto& channels = block.Add<Residual>("channels");
      channels.Add<RmsNorm>("norm", kChannels, 1e-5F);
      channels.Add<Mlp>("mlp", kChannels, 4 * kChannels, Initializer{.stddev = 0.2F});
    }
  }
};

absl::Status Train(Bootstrap& ranks) {
  WEFT_ASSIGN_OR_RETURN(auto heap, NodeHeap::Create(ranks, {}));
  WEFT_ASSIGN_OR_RETURN(auto engine, CommEngine::Create(ranks, *heap));
  WEFT_ASSIGN_OR_RETURN(auto mesh, DeviceMesh::Create({{"shard", -1}}, ranks.size()));
  Mixer net;
  WEFT_ASSIGN_OR_RETURN(auto model, FullyShard(net, net.children(), mesh, *engine, {}, LoadInitialValues(0)));
  ShardedAdamW optimizer(model->Shards(), {.lr = 3e-3, .weight_decay = 0});
  const int64_t n = ranks.size(), first = kImages * ranks.rank() / n, end = kImages * (ranks.rank() + 1) / n;
  const Tensor x = Tensor::Empty(DType::kF32, {end - first, kPatches, kChannels});  // This rank's images.
  for (int64_t i = 0; i < x.elements(); ++i)
    x.As<float>()[i] = std::sin(static_cast<float>((first * kPixels + i) * 7919 % 1009));
  for (int step = 1; step <= 100; ++step) {
    Invocation pass;
    WEFT_ASSIGN_OR_RETURN(Tensors y, net.Forward(pass, {x}));
    float loss = 0;
    for (int64_t i = 0; i < x.elements(); ++i) {  // Half the mean squared error; y is set to its gradient.
      const float error = y[0].As<float>()[i] - x.As<float>()[i - i % kPixels + kPixels - 1 - i % kPixels];
      loss += error * error / (2 * kImages * kPixels);
      y[0].As<float>()[i] = error / (kImages * kPixels);
    }
    WEFT_RETURN_IF_ERROR(net.Backward(pass, y).status());
    WEFT_RETURN_IF_ERROR(optimizer.Step(model->Shards()));
    model->ZeroGradients();
    WEFT_RETURN_IF_ERROR(model->AllReduceScalars("loss", &loss, DType::kF32, 1, ReduceOp::kSum));
    if (ranks.rank() == 0 && step % 10 == 0) std::printf("step %d  loss %.6f\n", step, loss);
  }
  return absl::OkStatus();
}

int main() {
  const auto ranks = MakeMpiBootstrap();
  const absl::Status status = ranks.ok() ? Train(**ranks) : ranks.status();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
