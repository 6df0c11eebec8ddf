// Checkpoints in a training loop. Four ranks train and save every second step. Then three ranks go on from
// the newest checkpoint, with the losses that four ranks would have had.
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include <weft/train/checkpoint.h>
#include <weft/weft.h>

using namespace weft;

constexpr int64_t kFeatures = 48, kRows = 12;

// One rank of a run that ends after step `last`. Ranks are threads of one process.
absl::Status Train(Bootstrap& ranks, const std::string& folder, int64_t last) {
  WEFT_ASSIGN_OR_RETURN(auto heap, NodeHeap::Create(ranks, {.segment_bytes = 16 << 20}));
  WEFT_ASSIGN_OR_RETURN(auto engine, CommEngine::Create(ranks, *heap));
  WEFT_ASSIGN_OR_RETURN(auto mesh, DeviceMesh::Create({{"shard", -1}}, ranks.size()));
  Sequential net("net");
  for (int i = 0; i < 3; ++i) net.Add<Linear>(absl::StrCat("linear", i), kFeatures, kFeatures);

  // Opened first: it locks the folder and removes what a killed run left.
  WEFT_ASSIGN_OR_RETURN(auto saver, CheckpointSaver::Open(ranks, folder, {.keep = 2}));
  std::vector<SkippedCheckpoint> damaged;  // Newer ones that cannot be used.
  WEFT_ASSIGN_OR_RETURN(const std::string newest, FindCheckpoint(ranks, folder, damaged, absl::Seconds(60)));
  std::optional<Checkpoint> resumed;
  if (!newest.empty()) {
    WEFT_ASSIGN_OR_RETURN(resumed, Checkpoint::OpenOnAllRanks(ranks, newest, absl::Seconds(60)));
  }

  WEFT_ASSIGN_OR_RETURN(auto model,
                        FullyShard(net, net.children(), mesh, *engine, {},
                                   resumed ? resumed->Loader("model") : LoadInitialValues(/*seed=*/0)));
  ShardedAdamW optimizer(model->Shards(), {.lr = 1e-2});
  if (resumed) {
    WEFT_RETURN_IF_ERROR(FillShards(optimizer.FirstMoments(), resumed->Loader("optimizer", ".exp_avg")));
    WEFT_RETURN_IF_ERROR(FillShards(optimizer.SecondMoments(), resumed->Loader("optimizer", ".exp_avg_sq")));
    optimizer.set_steps(resumed->step());
  }

  // The first save lists the checkpoint from which this run goes on before newer ones that are damaged.
  std::optional<int64_t> parent;
  if (resumed) parent = resumed->step();
  for (int64_t step = resumed ? resumed->step() + 1 : 1; step <= last; ++step) {
    // The whole batch has kRows rows, which the ranks divide among themselves.
    const int64_t begin = kRows * ranks.rank() / ranks.size(),
                  end = kRows * (ranks.rank() + 1) / ranks.size();
    const Tensor x = Tensor::Empty(DType::kF32, {end - begin, kFeatures});
    for (int64_t i = 0; i < x.elements(); ++i) {
      x.As<float>()[i] = static_cast<float>((begin * kFeatures + i) % 7) - 3;
    }
    Invocation pass(/*gradients=*/true);
    WEFT_ASSIGN_OR_RETURN(const Tensors y, net.Forward(pass, {x}));
    // The loss: half the mean of the squared outputs minus 1.
    float loss = 0;
    const Tensor dy = Tensor::Empty(DType::kF32, y[0].shape());
    for (int64_t i = 0; i < y[0].elements(); ++i) {
      const float error = y[0].As<float>()[i] - 1;
      loss += error * error / (2 * kRows * kFeatures);
      dy.As<float>()[i] = error / (kRows * kFeatures);
    }
    WEFT_RETURN_IF_ERROR(net.Backward(pass, {dy}).status());
    WEFT_RETURN_IF_ERROR(model->AllReduceScalars("loss", &loss, DType::kF32, 1, ReduceOp::kSum));
    WEFT_RETURN_IF_ERROR(optimizer.Step(*model));
    model->ZeroGradients();
    if (ranks.rank() == 0) std::printf("step %d  loss %.6f\n", static_cast<int>(step), loss);

    if (step % 2 != 0) continue;
    CheckpointState state;
    state.step = step;
    state.parent = std::exchange(parent, std::nullopt);
    state.arrays = {{"model", "", model->Shards()},
                    {"optimizer", ".exp_avg", optimizer.FirstMoments()},
                    {"optimizer", ".exp_avg_sq", optimizer.SecondMoments()}};
    WEFT_RETURN_IF_ERROR(saver->Start(std::move(state)));
    WEFT_RETURN_IF_ERROR(saver->Finish());
  }
  return absl::OkStatus();
}

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: checkpoint NEW_FOLDER\n"), 2;
  absl::Status status = absl::OkStatus();
  for (const auto& [ranks, last] : {std::pair(4, 5), std::pair(3, 8)}) {
    if (status.ok()) {
      std::printf("%d ranks\n", ranks);
      status = RunThreadRanks(NodeMap::OneNode(ranks), [&, last = last](Bootstrap& bootstrap) {
        return Train(bootstrap, argv[1], last);
      });
    }
  }
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
