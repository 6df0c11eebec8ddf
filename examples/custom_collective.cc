// A custom reduce-scatter for the gradients of one block, over ranks that are threads of one process: the
// parts travel by an all-to-all of the engine, and each rank adds them up in double precision. Prints the
// losses with the engine's reduce-scatter and with this one.
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>
#include <weft/mesh/world_group.h>
#include <weft/weft.h>

using namespace weft;

constexpr int kRanks = 3;
constexpr int64_t kFeatures = 32, kRows = 8;

// One reduce-scatter under way. The model waits for it where it would wait for the engine's own.
class DoubleSum : public PendingCollective {
 public:
  static StartedCollective Start(CommEngine& engine, LaneId lane, const ReduceScatterRequest& request) {
    if (request.dtype != DType::kF32) return absl::InvalidArgumentError("DoubleSum takes gradients in f32");
    const auto ranks = static_cast<size_t>(request.group.size());
    auto sum = std::make_unique<DoubleSum>();
    sum->output_ = static_cast<float*>(request.output);
    sum->count_ = request.counts[static_cast<size_t>(request.group.group_rank)];
    sum->received_.resize(ranks * static_cast<size_t>(sum->count_));
    const std::vector<int64_t> receive_counts(ranks, sum->count_);
    sum->work_ = engine.AllToAll(lane, request.input, request.counts, sum->received_.data(), receive_counts,
                                 request.dtype, {.priority = Priority::kReduce, .label = request.label});
    return sum;
  }

  absl::Status Wait() override {
    WEFT_RETURN_IF_ERROR(work_.Wait());
    if (std::exchange(is_added_, true)) return absl::OkStatus();
    for (size_t i = 0; i < static_cast<size_t>(count_); ++i) {
      double total = 0;
      for (size_t at = i; at < received_.size(); at += static_cast<size_t>(count_)) total += received_[at];
      output_[i] = static_cast<float>(total);
    }
    return absl::OkStatus();
  }
  absl::Status WaitReleased() override {
    WEFT_RETURN_IF_ERROR(Wait());
    return work_.WaitReleased();
  }
  bool TestReleased() const override { return is_added_ && work_.TestReleased(); }

 private:
  float* output_ = nullptr;
  int64_t count_ = 0;
  std::vector<float> received_;  // The parts of all ranks, in the order of ranks.
  bool is_added_ = false;
  Work work_;
};

absl::Status Train(Bootstrap& ranks, bool custom) {
  WEFT_ASSIGN_OR_RETURN(auto heap, NodeHeap::Create(ranks, {.segment_bytes = 16 << 20}));
  WEFT_ASSIGN_OR_RETURN(auto engine, CommEngine::Create(ranks, *heap));
  WEFT_ASSIGN_OR_RETURN(auto mesh, DeviceMesh::Create({{"shard", -1}}, ranks.size()));
  Sequential net("net");
  for (const char* name : {"first", "second", "third"}) {
    net.Add<Linear>(name, kFeatures, kFeatures, Initializer{.stddev = 0.2F});
  }
  WEFT_ASSIGN_OR_RETURN(auto model, FullyShard(net, net.children(), mesh, *engine, {}, LoadInitialValues(0)));
  int calls = 0;
  if (custom) {
    WEFT_ASSIGN_OR_RETURN(const LaneId lane, engine->AddLane(WorldGroup(ranks), LanePurpose::kReduceScatter));
    WEFT_RETURN_IF_ERROR(
        model->SetCustomReduceScatter(*net.children()[1], [&, lane](const ReduceScatterRequest& request) {
          ++calls;
          return DoubleSum::Start(*engine, lane, request);
        }));
  }
  ShardedAdamW optimizer(model->Shards(), {.lr = 1e-3, .weight_decay = 0});
  const Tensor x = Tensor::Empty(DType::kF32, {kRows, kFeatures});
  for (int64_t i = 0; i < x.elements(); ++i) {
    x.As<float>()[i] = static_cast<float>((ranks.rank() * x.elements() + i) * 7919 % 13) - 6;
  }
  for (int step = 1; step <= 5; ++step) {
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
    if (ranks.rank() == 0) std::printf("step %d  loss %.6f\n", step, loss);
  }
  if (ranks.rank() == 0) std::printf("custom reduce-scatters: %d\n", calls);
  return absl::OkStatus();
}

int main() {
  absl::Status status;
  for (const bool custom : {false, true}) {
    if (status.ok()) {
      status =
          RunThreadRanks(NodeMap::OneNode(kRanks), [&](Bootstrap& ranks) { return Train(ranks, custom); });
    }
  }
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
