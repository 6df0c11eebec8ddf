// The engine without modules, over MPI ranks: blocks of weights in flat buffers, of which each rank owns a
// part. While a block computes, the next one is gathered and the gradients of the last one are reduced.
#include <cstdio>
#include <vector>
#include <weft/memory/buffer_pool.h>
#include <weft/mesh/world_group.h>
#include <weft/weft.h>

using namespace weft;

constexpr int kBlocks = 6;
constexpr int64_t kPart = int64_t{16} * 1024;  // Elements of a block that each rank owns.

float Weight(int block, int64_t element) { return static_cast<float>((element + block) % 1000); }

absl::Status Run(Bootstrap& ranks) {
  WEFT_ASSIGN_OR_RETURN(auto heap, NodeHeap::Create(ranks, {.segment_bytes = 16 << 20}));
  WEFT_ASSIGN_OR_RETURN(auto engine, CommEngine::Create(ranks, *heap));
  // The operations of a lane are ready in the order of their submission. Lanes proceed beside each other. All
  // ranks add the same lanes, and submit the same operations, in one order.
  WEFT_ASSIGN_OR_RETURN(const LaneId gathers, engine->AddLane(WorldGroup(ranks), LanePurpose::kAllGather));
  WEFT_ASSIGN_OR_RETURN(const LaneId sums, engine->AddLane(WorldGroup(ranks), LanePurpose::kReduceScatter));

  // In node memory, peers read buffers where they lie; other memory would be copied.
  BufferPool pool(*heap, "blocks");
  const auto allocate = [&](int64_t elements) {
    return pool.Acquire(static_cast<size_t>(elements) * sizeof(float));
  };
  const auto floats = [](const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); };
  const int64_t whole = kPart * ranks.size(), first = kPart * ranks.rank();
  std::vector<Buffer> parts(kBlocks), results(kBlocks);
  std::vector<Buffer> weights(2), gradients(2);  // Of two whole blocks at a time.
  for (std::vector<Buffer>* buffers : {&parts, &results}) {
    for (Buffer& buffer : *buffers) {
      WEFT_ASSIGN_OR_RETURN(buffer, allocate(kPart));
    }
  }
  for (std::vector<Buffer>* buffers : {&weights, &gradients}) {
    for (Buffer& buffer : *buffers) {
      WEFT_ASSIGN_OR_RETURN(buffer, allocate(whole));
    }
  }
  for (int block = 0; block < kBlocks; ++block) {
    for (int64_t i = 0; i < kPart; ++i) floats(parts[block])[i] = Weight(block, first + i);
  }

  std::vector<Work> gathered(kBlocks), reduced(kBlocks);  // After the buffers: destroyed before them.
  const auto gather = [&](int block) -> absl::Status {
    // The buffer was that of block - 2. Released: no peer reads it any more.
    if (block >= 2) WEFT_RETURN_IF_ERROR(gathered[block - 2].WaitReleased());
    gathered[block] =
        engine->AllGather(gathers, floats(parts[block]), floats(weights[block % 2]), DType::kF32, whole);
    return absl::OkStatus();
  };
  WEFT_RETURN_IF_ERROR(gather(0));
  for (int block = 0; block < kBlocks; ++block) {
    if (block + 1 < kBlocks) WEFT_RETURN_IF_ERROR(gather(block + 1));
    WEFT_RETURN_IF_ERROR(gathered[block].Wait());  // Ready: all weights of the block are here.
    if (block >= 2) WEFT_RETURN_IF_ERROR(reduced[block - 2].WaitReleased());
    const float* weight = floats(weights[block % 2]);
    float* gradient = floats(gradients[block % 2]);
    for (int64_t i = 0; i < whole; ++i) gradient[i] = weight[i] * static_cast<float>(ranks.rank() + 1);
    reduced[block] =
        engine->ReduceScatter(sums, gradient, floats(results[block]), DType::kF32, whole, ReduceOp::kSum);
  }

  const float factor = static_cast<float>(ranks.size() * (ranks.size() + 1)) / 2;  // 1 + 2 + ... + ranks.
  for (int block = 0; block < kBlocks; ++block) {
    WEFT_RETURN_IF_ERROR(reduced[block].Wait());
    for (int64_t i = 0; i < kPart; ++i) {
      if (floats(results[block])[i] == factor * Weight(block, first + i)) continue;
      return absl::InternalError(absl::StrCat("element ", i, " of block ", block, " is wrong"));
    }
  }
  const EngineCounters counters = engine->counters();
  if (ranks.rank() == 0) {
    std::printf("%d blocks are right: %lld bytes gathered, %lld reduced, %lld copied\n", kBlocks,
                static_cast<long long>(counters.all_gather_bytes),
                static_cast<long long>(counters.reduce_scatter_bytes),
                static_cast<long long>(counters.copied_bytes));
  }
  return absl::OkStatus();
}

int main() {
  const auto ranks = MakeMpiBootstrap();
  const absl::Status status = ranks.ok() ? Run(**ranks) : ranks.status();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
