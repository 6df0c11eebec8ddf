// Fine-tuning with frozen parameters, over ranks that are threads of one process: the last layer is trained
// alone at first, then also the layer before it. Frozen layers have no gradients, reductions or moments.
#include <cstdio>
#include <weft/weft.h>

using namespace weft;

constexpr int kRanks = 4, kLayers = 4, kSteps = 20, kThawStep = 11;
constexpr int64_t kFeatures = 32, kRows = 8;

absl::Status Train(Bootstrap& ranks) {
  WEFT_ASSIGN_OR_RETURN(auto heap, NodeHeap::Create(ranks, {.segment_bytes = 16 << 20}));
  WEFT_ASSIGN_OR_RETURN(auto engine, CommEngine::Create(ranks, *heap));
  WEFT_ASSIGN_OR_RETURN(auto mesh, DeviceMesh::Create({{"shard", -1}}, ranks.size()));
  Sequential net("net");
  for (int i = 0; i < kLayers; ++i) {
    auto& layer =
        net.Add<Linear>(absl::StrCat("layer", i), kFeatures, kFeatures, Initializer{.stddev = 0.2F});
    for (const auto& parameter : layer.AllParameters()) parameter->requires_grad = i == kLayers - 1;
  }
  Module& thawed = *net.children()[kLayers - 2];
  ShardingPolicy policy;  // Only parameters that are selected here can be trained later.
  policy.trained_later = NameContains({thawed.name()});
  WEFT_ASSIGN_OR_RETURN(auto model,
                        FullyShard(net, net.children(), mesh, *engine, policy, LoadInitialValues(0)));
  ShardedAdamW optimizer(model->Shards(), {.lr = 3e-3, .weight_decay = 0});
  const Tensor x = Tensor::Empty(DType::kF32, {kRows, kFeatures});
  for (int64_t i = 0; i < x.elements(); ++i) {
    x.As<float>()[i] = static_cast<float>((ranks.rank() * x.elements() + i) * 7919 % 13) - 6;
  }
  for (int step = 1; step <= kSteps; ++step) {
    if (step == kThawStep) {  // Between steps, on all ranks.
      for (const auto& parameter : thawed.AllParameters()) parameter->requires_grad = true;
    }
    const int64_t before = engine->counters().reduce_scatter_bytes;
    Invocation pass;
    WEFT_ASSIGN_OR_RETURN(const Tensors y, net.Forward(pass, {x}));
    float loss = 0;  // Half the mean squared distance to 1.
    const Tensor dy = Tensor::Empty(DType::kF32, y[0].shape());
    for (int64_t i = 0; i < y[0].elements(); ++i) {
      const float error = y[0].As<float>()[i] - 1;
      loss += error * error / (kRows * kFeatures * kRanks * 2);
      dy.As<float>()[i] = error / (kRows * kFeatures * kRanks);
    }
    WEFT_RETURN_IF_ERROR(net.Backward(pass, {dy}).status());
    WEFT_RETURN_IF_ERROR(model->AllReduceScalars("loss", &loss, DType::kF32, 1, ReduceOp::kSum));
    WEFT_RETURN_IF_ERROR(optimizer.Step(*model));
    model->ZeroGradients();
    const int64_t reduced = engine->counters().reduce_scatter_bytes - before;
    if (ranks.rank() == 0 && step % 5 == 1) {
      std::printf("step %d  loss %.6f  reduced %lld bytes  shards with moments %zu\n", step, loss,
                  static_cast<long long>(reduced), optimizer.FirstMoments().size());
    }
  }
  return absl::OkStatus();
}

int main() {
  const absl::Status status = RunThreadRanks(NodeMap::OneNode(kRanks), Train);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
