// Trace of an engine: the operations, the slices on the wire and the waits of an interval.
//
// Times are those of the bootstrap's Runtime::NowNs, in nanoseconds. Thread safety: values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/comm/types.h"
#include "weft/core/dtype.h"

namespace weft {

// An operation that was *released* in the interval. submitted <= started <= ready <= released.
struct TracedOperation {
  std::string lane;  // Name of the lane; "messages" for a point-to-point message.
  uint64_t sequence;
  OpKind kind;
  std::string label;
  DType dtype;
  int64_t bytes;      // Bytes that the algorithm must bring to this rank.
  Priority priority;  // As submitted. A wait may have raised it.
  int64_t submitted_ns, started_ns, ready_ns, released_ns;
};

// A slice between this rank and one of another node, or a run of slices that traveled as one message, whose
// transfer ended in the interval.
// A sent slice lasts from the send until the link no longer reads the source.
// A received slice lasts from the credit to the arrival.
struct TracedSlice {
  std::string lane;
  uint64_t sequence;  // Of the operation on its lane.
  bool sent;          // Else received.
  int peer;           // Bootstrap rank.
  int64_t number;     // Of the slice in its stream. Of a run: the number of its first slice.
  int64_t slices;     // Of a run; else 1.
  int64_t bytes;
  int64_t begin_ns, end_ns;
};

// Time that a thread spent in Work::Wait or WaitReleased, or that the engine waited in its destructor.
struct TracedWait {
  std::string operation;  // "all_gather 'layers.3' on shard/all_gather"; empty if the wait is for all.
  int64_t begin_ns, end_ns;
};

// Each list in the order of the ends.
struct EngineTrace {
  std::vector<TracedOperation> operations;
  std::vector<TracedSlice> slices;
  std::vector<TracedWait> waits;  // Their times add up to the growth of EngineCounters::wait_ns.
};

}  // namespace weft
