// The vocabulary of the communication engine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

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
  kBarrier
};
// kAverage multiplies the fp32 sum by 1/size of the group before the one rounding; not for integers.
enum class ReduceOp : uint8_t { kSum, kAverage, kMax };

// Who goes first when several operations could move data. Waiting on a Work raises it, all before it on its
// lane, and what these come `after`, to kCritical.
enum class Priority : uint8_t { kCritical, kPrefetch, kReduce, kBulk };

// What a lane is for. Collectives of different purposes never share a lane, so that none waits behind
// another.
enum class LanePurpose : uint8_t { kAllGather, kReduceScatter, kAllReduce, kContext, kControl };

// How numbers travel between nodes. The same bits arrive either way: what a compressed slice saves of the
// wire, about a sixth in f32, 0.3 in bf16 and a third of changes, it costs in compute at both ends. Of
// all-gathers, broadcasts and reductions, in f32 and bf16; everything else travels as it is.
enum class WireCompression : uint8_t { kNone, kLossless };

std::string_view Name(OpKind kind);
std::string_view Name(ReduceOp op);
std::string_view Name(Priority priority);
std::string_view Name(LanePurpose purpose);
// "none", "lossless".
std::string_view Name(WireCompression compression);

// An ordered stream of collectives on one process group: a handle, valid on the engine that made it.
struct LaneId {
  int index = -1;
};

class Work;

// What may be said of any collective beside its data.
struct OpOptions {
  Priority priority = Priority::kBulk;
  // Hash of what the collective is for (group, bucket, step, microbatch, …). Ranks whose identities differ at
  // the same place of a lane are told so, instead of adding up things that do not belong together. 0 is an
  // identity like any.
  uint64_t identity = 0;
  // For messages and traces: "layers.3", "grad_norm".
  std::string label;
  // The same on all ranks.
  WireCompression compression = WireCompression::kNone;
  // The *gate*: this starts only when that earlier Work of the same engine is *released* here, so that it may
  // write memory that peers read through that one. Read at submission only. All ranks should name the same
  // operation, earlier in the program than any that this one comes behind on its lane.
  const Work* gate = nullptr;
};

}  // namespace weft
