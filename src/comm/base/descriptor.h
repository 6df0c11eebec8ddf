// Description of a submitted operation. Ranks exchange and compare descriptors before any data moves, so that
// ranks that submitted different operations detect it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "weft/comm/types.h"
#include "weft/memory/node_heap.h"

namespace weft {

// Number of the lane of point-to-point messages, after those of all other lanes. A message's sequence is its
// sender's number of it, or in a receiver's record the receiver's.
inline constexpr int kMessageLane = 1 << 20;

// Trivially copyable: lies in node memory and travels in control messages.
struct Descriptor {
  static constexpr NodeAddress kNoAddress{-1, 0};
  uint64_t sequence = 0;    // Number of the operation on its lane, from 1.
  uint64_t identity = 0;    // OpOptions::identity.
  uint64_t group_hash = 0;  // Hash of the ranks of the lane's group.
  // Hash of the counts of all parts. 0 if ranks may pass different counts, or if the counts follow from the
  // total and the root.
  uint64_t counts_hash = 0;
  // Hash of the group's share domains. 0 unless it has several on a node, and the operation is a gather into
  // shared outputs or a reduce-scatter.
  uint64_t domains_hash = 0;
  int64_t total_count = 0;  // Elements. 0 if the total may differ between ranks.
  double scale = 1.0;       // OpOptions::scale.
  uint32_t generation = 0;  // Number of resets of the engine after errors.
  int32_t root = 0;         // Rank in the group from which a broadcast comes.
  OpKind kind = OpKind::kBarrier;
  DType dtype = DType::kF32;
  ReduceOp reduce = ReduceOp::kSum;
  WireCompression wire_compression = WireCompression::kNone;
  ElementKind elements = ElementKind::kPlain;
  bool any_dtype = false;  // The rank moves no elements, and knows no dtype. Any dtype of its peers matches.
  // No operation: the rank submits nothing at this sequence or later. See Note [Leaving].
  bool leaves = false;
  // Addresses at which local peers read or write this rank's memory. kNoAddress if the operation shares none.
  NodeAddress input = kNoAddress;
  NodeAddress output = kNoAddress;
  // The address is that of staging rings of the buffer. See Note [Staging rings].
  bool input_in_ring = false;
  bool output_in_ring = false;
};

// True if operations of this kind combine elements of several ranks.
inline bool Reduces(OpKind kind) { return kind == OpKind::kReduceScatter || kind == OpKind::kAllReduce; }

// The first enumerator or bool that is out of range in the bytes of a descriptor of another rank, such as
// "unknown dtype 77". Nothing if there is none.
std::optional<std::string> UnknownField(const char* descriptor);

// True if both describe the same collective. Ignores memory addresses, which differ between ranks.
bool IsSameCollective(const Descriptor& a, const Descriptor& b);
// The same for two ranks of one node. Also compares the address of an output that all ranks of a node share.
bool IsSameCollectiveOnNode(const Descriptor& a, const Descriptor& b);

// Hash of everything that IsSameCollectiveOnNode compares. If hashes are equal, so are the operations. Those
// of different hashes still match if one of them takes any dtype.
uint64_t HashOnNode(const Descriptor& descriptor);

// "f32", or "f32 (complex)".
std::string ElementName(DType dtype, ElementKind elements);
// "all_reduce of 4096 f32 by sum, sequence 7", "broadcast of 8 f32 from rank 0 of the group, sequence 1".
std::string ToString(const Descriptor& descriptor);
// Differences of two mismatched descriptors that ToString does not show, such as " (identities 1f and 2e)".
// Empty if ToString shows them all.
std::string MismatchDetails(const Descriptor& a, const Descriptor& b);

}  // namespace weft
