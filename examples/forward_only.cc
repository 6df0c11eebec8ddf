// Inference with a sharded model that contains a user-defined layer. Four ranks, here threads of one process,
// own a quarter of the weights each. At most two layers are unsharded at any time. Prints a checksum of the
// outputs and the peak memory of unsharded weights.
#include <cstdio>
#include <weft/weft.h>

using namespace weft;

constexpr int kRanks = 4, kLayers = 8;
constexpr int64_t kFeatures = 256, kRows = 32;

// A user-defined layer: y = x * gain, with one gain per feature. It implements forward and backward.
class Gain : public Module {
 public:
  explicit Gain(std::string name) : Module(std::move(name)) {
    AddParameter("gain", {kFeatures}, {Initializer::Kind::kConstant, 1.5F});
  }

 protected:
  absl::StatusOr<Tensors> ForwardImpl(Invocation& pass, const Tensors& x) override {
    if (pass.is_saving()) pass.Save(this, {x[0]});
    const Tensor y = Tensor::Empty(DType::kF32, x[0].shape());
    const auto* gain = parameters()[0]->data.As<float>();
    for (int64_t i = 0; i < y.elements(); ++i) y.As<float>()[i] = x[0].As<float>()[i] * gain[i % kFeatures];
    return Tensors{y};
  }
  absl::StatusOr<Tensors> BackwardImpl(Invocation& pass, const Tensors& dy) override {
    const Tensor x = pass.PopSaved(this)[0];
    const Tensor dx = Tensor::Empty(DType::kF32, x.shape());
    auto* dgain = parameters()[0]->grad.As<float>();
    // The first backward overwrites the gradient (beta 0), later ones add to it (beta 1).
    if (parameters()[0]->BeginGradWrite() == 0) std::fill_n(dgain, kFeatures, 0.0F);
    for (int64_t i = 0; i < x.elements(); ++i) {
      dx.As<float>()[i] = dy[0].As<float>()[i] * parameters()[0]->data.As<float>()[i % kFeatures];
      dgain[i % kFeatures] += dy[0].As<float>()[i] * x.As<float>()[i];
    }
    return Tensors{dx};
  }
};

absl::Status Infer(Bootstrap& ranks) {
  WEFT_ASSIGN_OR_RETURN(auto heap, NodeHeap::Create(ranks, {.segment_bytes = 16 << 20}));
  WEFT_ASSIGN_OR_RETURN(auto engine, CommEngine::Create(ranks, *heap));
  WEFT_ASSIGN_OR_RETURN(auto mesh, DeviceMesh::Create({{"shard", -1}}, ranks.size()));
  Sequential net("net");
  for (int i = 0; i < kLayers; ++i) {
    auto& layer = net.Add<Residual>(absl::StrCat("layer", i));
    layer.Add<Linear>("linear", kFeatures, kFeatures);
    layer.Add<Gain>("gain");
  }
  ShardingPolicy policy;
  policy.prefetch_depth = 1;  // Unshard one layer ahead of the one that computes.
  WEFT_ASSIGN_OR_RETURN(auto model,
                        FullyShard(net, net.children(), mesh, *engine, policy, LoadInitialValues(0)));
  const Tensor x = Tensor::Empty(DType::kF32, {kRows, kFeatures});
  for (int64_t i = 0; i < x.elements(); ++i) x.As<float>()[i] = static_cast<float>(i % 17) - 8;
  Invocation pass(/*gradients=*/false);  // No backward follows, so that nothing is saved.
  WEFT_ASSIGN_OR_RETURN(const Tensors y, net.Forward(pass, {x}));
  double checksum = 0;
  for (int64_t i = 0; i < y[0].elements(); ++i) checksum += y[0].As<float>()[i];
  if (ranks.rank() == 0) {
    std::printf("checksum %.6f  peak unsharded %zu of %zu bytes\n", checksum, model->peaks().image_bytes,
                kLayers * (kFeatures + 1) * kFeatures * sizeof(float));
  }
  return absl::OkStatus();
}

int main() {
  // One rank per node. Ranks of one node would read each other's shards in place, without a gather.
  const absl::Status status = RunThreadRanks(NodeMap::RanksPerNode(kRanks, 1), Infer);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
