// What a rank says of an operation before any of its data moves, so that ranks that mean different things
// find out.
#pragma once

#include <cstdint>
#include <string>

#include "weft/comm/types.h"
#include "weft/memory/node_heap.h"

namespace weft {

// Plain data: lies in node memory and travels in notes.
struct Descriptor {
  static constexpr NodeAddress kNowhere{-1, 0};
  uint64_t sequence = 0;     // Of its lane, from 1.
  uint64_t identity = 0;     // OpOptions::identity.
  uint64_t group_hash = 0;   // Of the ranks of the lane's group.
  uint64_t counts_hash = 0;  // Of the per-rank counts and the root; 0 where counts may differ between ranks.
  int64_t total_count = 0;   // 0 where it may differ.
  uint32_t generation = 0;   // Of the engine: grows with each reset after an error.
  OpKind kind = OpKind::kBarrier;
  DType dtype = DType::kF32;
  ReduceOp reduce = ReduceOp::kSum;
  WireCompression compression = WireCompression::kNone;
  // Where peers of the node find the operation's memory, if it shares any.
  NodeAddress input = kNowhere;
  NodeAddress output = kNowhere;
};

// Whether both describe the same collective. (Where its memory lies is each rank's own.)
bool Agree(const Descriptor& a, const Descriptor& b);
// The same for ranks of one node, who also mean the same block where an operation writes to one that they
// share.
bool AgreeInNode(const Descriptor& a, const Descriptor& b);

// "all_reduce of 4096 f32 by sum, sequence 7".
std::string ToString(const Descriptor& descriptor);
// What of two descriptors that do not agree their texts do not show: " (identities 1f and 2e)", or nothing.
std::string HiddenDifference(const Descriptor& a, const Descriptor& b);

}  // namespace weft
