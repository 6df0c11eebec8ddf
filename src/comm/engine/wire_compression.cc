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

// More than what the system's buffers, and those of a link, take in at once.
constexpr int64_t kSentElements = int64_t{1} << 19;
constexpr int kRounds = 3;
constexpr int64_t kSliceElements = int64_t{15} * 1024;
constexpr size_t kSliceBytes = kSliceElements * sizeof(float);
constexpr int kSlices = 8;
constexpr double kMegabyte = 1e6;
// What must be saved for what compression takes by itself: beside a rank that computes it takes more, as
// threads change places and caches are shared.
constexpr double kLeastGain = 3.0;

// By how many ranks to shift what is sent, so that as much as possible of it goes to other nodes.
int FarthestShift(const NodeMap& nodes) {
  int best = 1;
  int most = 0;
  for (int shift = 1; shift < nodes.size(); ++shift) {
    int leaving = 0;
    for (int rank = 0; rank < nodes.size(); ++rank) {
      leaving += nodes.SameNode(rank, (rank + shift) % nodes.size()) ? 0 : 1;
    }
    if (leaving == nodes.size()) return shift;
    if (leaving <= most) continue;
    most = leaving;
    best = shift;
  }
  return best;
}

double MillisecondsOf(Runtime& runtime, const std::function<void()>& work) {
  const int64_t begin = runtime.NowNs();
  work();
  return static_cast<double>(runtime.NowNs() - begin) / 1e6;
}

using Numbers = std::shared_ptr<std::vector<float>>;

Numbers MakeNumbers(int64_t count) { return std::make_shared<std::vector<float>>(count, 1.0F); }

TensorView ViewOf(const Numbers& numbers) {
  return TensorView::Contiguous(numbers->data(), DType::kF32, {static_cast<int64_t>(numbers->size())});
}

// The memory of an operation that fails must outlive it.
absl::Status Finish(Work work, const std::vector<Numbers>& memory) {
  absl::Status finished = work.WaitReleased();
  if (!finished.ok()) work.Detach({memory.begin(), memory.end()});
  return finished;
}

// The fastest round, in milliseconds a megabyte.
absl::StatusOr<double> MeasureWire(CommEngine& engine, LaneId lane) {
  const ProcessGroup& world = engine.group(lane);
  const int shift = FarthestShift(engine.bootstrap().node_map());
  const int to = (world.group_rank + shift) % world.size();
  const int from = (world.group_rank + world.size() - shift) % world.size();
  const Numbers sent = MakeNumbers(kSentElements);
  const Numbers received = MakeNumbers(kSentElements);
  double least = 0;
  for (int round = 0; round < kRounds; ++round) {
    absl::Status done;
    const double milliseconds = MillisecondsOf(engine.bootstrap().runtime(), [&] {
      done = Finish(engine.SendReceive(lane, ViewOf(sent), to, ViewOf(received), from), {sent, received});
    });
    WEFT_RETURN_IF_ERROR(done);
    least = round == 0 ? milliseconds : std::min(least, milliseconds);
  }
  return least * kMegabyte / static_cast<double>(kSentElements * sizeof(float));
}

struct CodecCost {
  double milliseconds;  // For a megabyte, at both ends together,
  double left_share;    // of which so much still travels.
};

CodecCost MeasureCodec(Runtime& runtime) {
  std::vector<float> numbers(kSliceElements);
  std::mt19937 random;  // NOLINT(cert-msc51-cpp): the same numbers at each run.
  std::normal_distribution<float> normal(0.0F, 0.02F);
  std::generate(numbers.begin(), numbers.end(), [&] { return normal(random); });
  auto* plain = reinterpret_cast<std::byte*>(numbers.data());
  std::vector<std::byte> compressed(CompressedCapacity(sizeof(float), kSliceElements));
  size_t bytes = 0;
  double least = 0;
  for (int slice = 0; slice < kSlices; ++slice) {
    const double milliseconds = MillisecondsOf(runtime, [&] {
      runtime.Move(kSliceBytes,
                   [&] { bytes = CompressSlice(DType::kF32, plain, kSliceElements, compressed.data()); });
      runtime.Move(kSliceBytes, [&] {
        WEFT_CHECK(DecompressSlice(DType::kF32, compressed.data(), kSliceElements, plain),
                   "a slice that was just compressed cannot be read");
      });
    });
    least = slice == 0 ? milliseconds : std::min(least, milliseconds);
  }
  return {least * kMegabyte / kSliceBytes, static_cast<double>(bytes) / kSliceBytes};
}

}  // namespace

absl::StatusOr<WireCompressionChoice> ChooseWireCompression(CommEngine& engine) {
  Bootstrap& bootstrap = engine.bootstrap();
  if (bootstrap.node_map().node_count() == 1) {
    return WireCompressionChoice{WireCompression::kNone, "all ranks are on one node"};
  }
  WEFT_ASSIGN_OR_RETURN(const LaneId lane, engine.AddLane(WorldGroup(bootstrap), LanePurpose::kControl));
  const CodecCost codec = MeasureCodec(bootstrap.runtime());
  WEFT_ASSIGN_OR_RETURN(const double wire_ms, MeasureWire(engine, lane));
  // All ranks decide by the same numbers.
  const Numbers worst = MakeNumbers(3);
  *worst = {static_cast<float>(wire_ms), static_cast<float>(codec.milliseconds),
            static_cast<float>(codec.left_share)};
  WEFT_RETURN_IF_ERROR(Finish(engine.AllReduce(lane, worst->data(), worst->data(), DType::kF32,
                                               static_cast<int64_t>(worst->size()), ReduceOp::kMax),
                              {worst}));
  const double slowest_ms = (*worst)[0];
  const double codec_ms = (*worst)[1];
  const double saved_ms = slowest_ms * (1.0 - (*worst)[2]);
  const bool pays = saved_ms > kLeastGain * codec_ms;
  return WireCompressionChoice{pays ? WireCompression::kLossless : WireCompression::kNone,
                               absl::StrFormat("between nodes a rank's megabyte takes %.3g ms, of which "
                                               "compression saves %.2g for %.2g of compute",
                                               slowest_ms, saved_ms, codec_ms)};
}

}  // namespace weft
