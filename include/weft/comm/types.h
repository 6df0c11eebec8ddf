// Basic types of the communication engine: kinds of collectives, priorities, lanes and the options of a
// submission.
//
// Thread safety: values and free functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "weft/comm/element_enums.h"
#include "weft/core/dtype.h"

namespace weft {

enum class OpKind : uint8_t {
  kAllGather,
  kAllGatherShared,
  kAllGatherDelta,
  kReduceScatter,
  kAllReduce,
  kAllToAll,
  kSendReceive,
  kBroadcast,
  kBarrier,
  kSend,
  kReceive
};

// Urgency of an operation, most urgent first. It decides which operation moves data next. Waiting on a Work
// raises it to kCritical, together with its predecessors on the lane and the operations for which these wait
// (`after` and gate).
enum class Priority : uint8_t { kCritical, kPrefetch, kReduce, kBulk };
inline constexpr size_t kPriorities = 4;

// Use of a lane. Collectives of different purposes have separate lanes, so that none queues behind another.
enum class LanePurpose : uint8_t { kAllGather, kReduceScatter, kAllReduce, kContext, kControl, kOptimizer };
inline constexpr size_t kLanePurposes = 6;

// Compression of f32 and bf16 between nodes, in all-gathers, broadcasts and reductions. Results have the same
// bits with and without it. In the benchmark model, lossless compression saves about one sixth of the bytes
// in f32, 0.3 in bf16 and one third in delta encoding; see docs/benchmarks.md. It takes compute time at both
// ends.
enum class WireCompression : uint8_t { kNone, kLossless };

std::string_view Name(OpKind kind);
std::string_view Name(ReduceOp op);
std::string_view Name(Priority priority);
std::string_view Name(LanePurpose purpose);
std::string_view Name(WireCompression wire_compression);  // "none", "lossless".
std::string_view Name(ElementKind elements);              // "complex".

// Elements that each rank reduces in an all-reduce, by group rank. All counts are the same whole number of
// cache lines, but the last ones may be smaller or 0. A reduce-scatter with these counts computes the same
// sums on the same ranks. Its bits therefore equal those of the all-reduce, even if partial sums are rounded
// between nodes.
std::vector<int64_t> AllReduceCounts(int64_t elements, int ranks, DType dtype);

// An ordered stream of collectives on one process group. Valid on the engine that returned it.
struct LaneId {
  int index = -1;
};

// The peer and the match of a point-to-point message. A send and a receive match by channel and tag.
inline constexpr int kAnySource = -1;
struct MessageAddress {
  int peer = kAnySource;  // Bootstrap rank. For a receive, kAnySource accepts every sender.
  int tag = 0;
  uint64_t channel = 0;  // Separates users that do not know each other's tags, such as process groups.
};

class Work;

// Options of one collective, beside its data.
struct OpOptions {
  Priority priority = Priority::kBulk;
  // Hash of the collective's purpose, such as group, bucket and step. Ranks that submit different identities
  // at the same position of a lane get an error, instead of a sum of unrelated data.
  uint64_t identity = 0;
  // Text for messages and traces, such as "layers.3" or "grad_norm".
  std::string label;
  // REQUIRES: the same on all ranks.
  WireCompression wire_compression = WireCompression::kNone;
  // An earlier Work of the same engine. This operation starts once the gate is *released* on this rank, and
  // may then write memory that peers read in the gate's operation. Read at submission only.
  // REQUIRES: every rank of the gate's group submits the gate before this operation. Otherwise ranks may
  // deadlock.
  const Work* gate = nullptr;
  // Factor of a sum of floating-point numbers, applied before the result is rounded to the dtype: in f64 for
  // f64, otherwise in f32. REQUIRES: the same on all ranks.
  double scale = 1.0;
  // Kind of the caller's elements. Ranks that differ get an error, as with dtypes.
  ElementKind elements = ElementKind::kPlain;
};

}  // namespace weft
