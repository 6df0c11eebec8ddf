#include "weft/comm/wire_compression.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include <absl/strings/str_format.h>

#include "src/comm/codec/slice_codec.h"
#include "weft/core/status.h"
#include "weft/mesh/world_group.h"

namespace weft {
namespace {

// Elements of a message: more than the socket buffers and the link hold.
constexpr int64_t kSentElements = int64_t{1} << 19;
constexpr int kRounds = 3;
constexpr int64_t kSliceElements = int64_t{15} * 1024;
constexpr size_t kSliceBytes = kSliceElements * sizeof(float);
constexpr int kSlices = 8;
constexpr double kMegabyte = 1e6;
// Least ratio of saved transfer time to compute time. The measurement runs alone; beside a computing rank,
// compression takes longer because of context switches and shared caches.
constexpr double kMinGain = 3.0;

// The shift for which the most ranks send to another node.
int MostRemoteShift(const NodeMap& nodes) {
  int best = 1;
  int max_remote_sends = 0;
  for (int shift = 1; shift < nodes.size(); ++shift) {
    int remote_sends = 0;
    for (int rank = 0; rank < nodes.size(); ++rank) {
      remote_sends += nodes.SameNode(rank, (rank + shift) % nodes.size()) ? 0 : 1;
    }
    if (remote_sends == nodes.size()) return shift;
    if (remote_sends <= max_remote_sends) continue;
    max_remote_sends = remote_sends;
    best = shift;
  }
  return best;
}

double TimeMs(Runtime& runtime, const std::function<void()>& work) {
  const int64_t begin = runtime.NowNs();
  work();
  return static_cast<double>(runtime.NowNs() - begin) / 1e6;
}

using Values = std::shared_ptr<std::vector<float>>;

Values MakeValues(int64_t count) { return std::make_shared<std::vector<float>>(count, 1.0F); }

TensorView ViewOf(const Values& values) {
  return TensorView::Contiguous(values->data(), DType::kF32, {static_cast<int64_t>(values->size())});
}

// Waits for *released*. A failed operation keeps its memory.
absl::Status Finish(Work work, const std::vector<Values>& memory) {
  absl::Status finished = work.WaitReleased();
  if (!finished.ok()) work.Detach({memory.begin(), memory.end()});
  return finished;
}

// The transfer time of the fastest round, in milliseconds per megabyte.
absl::StatusOr<double> MeasureWire(CommEngine& engine, LaneId lane) {
  const ProcessGroup& world = engine.group(lane);
  const int shift = MostRemoteShift(engine.bootstrap().node_map());
  const int to = (world.group_rank + shift) % world.size();
  const int from = (world.group_rank + world.size() - shift) % world.size();
  const Values sent = MakeValues(kSentElements);
  const Values received = MakeValues(kSentElements);
  double shortest = 0;
  for (int round = 0; round < kRounds; ++round) {
    absl::Status done;
    const double milliseconds = TimeMs(engine.bootstrap().runtime(), [&] {
      done = Finish(engine.SendReceive(lane, ViewOf(sent), to, ViewOf(received), from), {sent, received});
    });
    WEFT_RETURN_IF_ERROR(done);
    shortest = round == 0 ? milliseconds : std::min(shortest, milliseconds);
  }
  return shortest * kMegabyte / static_cast<double>(kSentElements * sizeof(float));
}

struct CodecCost {
  double ms_per_megabyte;      // At sender and receiver together.
  double compressed_fraction;  // Compressed bytes / plain bytes.
};

CodecCost MeasureCodec(Runtime& runtime) {
  std::vector<float> values(kSliceElements);
  std::mt19937 random;  // NOLINT(cert-msc51-cpp): the same values in every run.
  std::normal_distribution<float> normal(0.0F, 0.02F);
  std::generate(values.begin(), values.end(), [&] { return normal(random); });
  auto* plain = reinterpret_cast<std::byte*>(values.data());
  std::vector<std::byte> compressed(CompressedCapacity(sizeof(float), kSliceElements));
  size_t bytes = 0;
  double shortest = 0;
  for (int slice = 0; slice < kSlices; ++slice) {
    const double milliseconds = TimeMs(runtime, [&] {
      runtime.Move({kSliceBytes},
                   [&] { bytes = CompressSlice(DType::kF32, plain, kSliceElements, compressed.data()); });
      runtime.Move({kSliceBytes}, [&] {
        WEFT_CHECK(DecompressSlice(DType::kF32, compressed.data(), kSliceElements, plain),
                   "a slice that was just compressed does not decompress");
      });
    });
    shortest = slice == 0 ? milliseconds : std::min(shortest, milliseconds);
  }
  return {shortest * kMegabyte / kSliceBytes, static_cast<double>(bytes) / kSliceBytes};
}

}  // namespace

absl::StatusOr<WireCompressionChoice> ChooseWireCompression(CommEngine& engine) {
  Bootstrap& bootstrap = engine.bootstrap();
  if (bootstrap.node_map().node_count() == 1) {
    return WireCompressionChoice{WireCompression::kNone, "all ranks are on one node"};
  }
  WEFT_ASSIGN_OR_RETURN(const LaneId lane, engine.SharedLane(WorldGroup(bootstrap), LanePurpose::kControl));
  const CodecCost codec = MeasureCodec(bootstrap.runtime());
  WEFT_ASSIGN_OR_RETURN(const double wire_ms, MeasureWire(engine, lane));
  // All ranks decide by the largest values of any rank, so that they choose alike.
  const Values worst = MakeValues(3);
  *worst = {static_cast<float>(wire_ms), static_cast<float>(codec.ms_per_megabyte),
            static_cast<float>(codec.compressed_fraction)};
  WEFT_RETURN_IF_ERROR(Finish(engine.AllReduce(lane, worst->data(), worst->data(), DType::kF32,
                                               static_cast<int64_t>(worst->size()), ReduceOp::kMax),
                              {worst}));
  const double slowest_ms = (*worst)[0];
  const double codec_ms = (*worst)[1];
  const double saved_ms = slowest_ms * (1.0 - (*worst)[2]);
  const bool pays = saved_ms > kMinGain * codec_ms;
  return WireCompressionChoice{pays ? WireCompression::kLossless : WireCompression::kNone,
                               absl::StrFormat("between nodes a megabyte takes %.3g ms; compression "
                                               "saves %.2g ms and takes %.2g ms of compute",
                                               slowest_ms, saved_ms, codec_ms)};
}

}  // namespace weft
