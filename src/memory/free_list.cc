#include "src/memory/free_list.h"

#include <algorithm>
#include <iterator>

#include "weft/core/status.h"

namespace weft::internal {

uint64_t FreeList::BlockBytes(uint64_t bytes) {
  const uint64_t granules = bytes / kGranule + (bytes % kGranule != 0 ? 1 : 0);
  return std::clamp<uint64_t>(granules, 1, UINT64_MAX / kGranule) * kGranule;
}

FreeList::FreeList(uint64_t bytes) : free_bytes_(bytes / kGranule * kGranule) {
  if (free_bytes_ > 0) AddHole(0, free_bytes_);
}

void FreeList::AddHole(uint64_t offset, uint64_t bytes) {
  by_offset_.emplace(offset, bytes);
  by_size_.emplace(bytes, offset);
}

void FreeList::RemoveHole(uint64_t offset, uint64_t bytes) {
  by_offset_.erase(offset);
  by_size_.erase({bytes, offset});
}

std::optional<uint64_t> FreeList::Allocate(uint64_t bytes) {
  const uint64_t wanted = BlockBytes(bytes);
  const auto best = by_size_.lower_bound({wanted, 0});
  if (best == by_size_.end()) return std::nullopt;
  const auto [hole, offset] = *best;
  RemoveHole(offset, hole);
  if (hole > wanted) AddHole(offset + wanted, hole - wanted);
  allocated_.emplace(offset, wanted);
  allocated_bytes_ += wanted;
  free_bytes_ -= wanted;
  return offset;
}

uint64_t FreeList::Free(uint64_t offset) {
  const auto block = allocated_.find(offset);
  WEFT_CHECK(block != allocated_.end(),
             "the freed offset is not an allocated block: it was never allocated, or freed twice");
  const uint64_t bytes = block->second;
  allocated_.erase(block);
  allocated_bytes_ -= bytes;
  free_bytes_ += bytes;

  uint64_t begin = offset;
  uint64_t end = offset + bytes;
  const auto next = by_offset_.lower_bound(offset);
  if (next != by_offset_.begin()) {
    const auto [before, size] = *std::prev(next);
    if (before + size == begin) begin = before;
  }
  if (next != by_offset_.end() && next->first == end) {
    end += next->second;
    RemoveHole(next->first, end - next->first);
  }
  if (begin != offset) RemoveHole(begin, offset - begin);
  AddHole(begin, end - begin);
  return bytes;
}

}  // namespace weft::internal
