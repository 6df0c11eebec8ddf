#include "src/mesh/base/node_segments.h"

namespace weft::internal {
namespace {

size_t Stride(size_t segment_bytes) {
  constexpr size_t kAlignment = 64;
  return (segment_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

size_t NodeSegmentsBytes(size_t segment_bytes, size_t ranks) { return Stride(segment_bytes) * ranks; }

NodeMemory NodeSegmentsAt(std::byte* base, size_t segment_bytes, const std::vector<int>& ranks) {
  NodeMemory memory;
  memory.segment_bytes = segment_bytes;
  for (const int rank : ranks) {
    memory.segments.push_back({rank, base});
    base += Stride(segment_bytes);
  }
  return memory;
}

}  // namespace weft::internal
