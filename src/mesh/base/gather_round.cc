#include "src/mesh/base/gather_round.h"

#include "src/mesh/base/deadline.h"
#include "src/mesh/host/node_memory_limits.h"
#include "weft/core/status.h"

namespace weft::internal {
namespace {

// Distance between the segments of a reservation.
size_t Stride(size_t segment_bytes) {
  constexpr size_t kAlignment = 64;
  return (segment_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

absl::StatusOr<AnonymousMemory> Reserve(size_t segment_bytes, size_t ranks,
                                        const absl::StatusOr<FreeMemory>& free_memory) {
  WEFT_RETURN_IF_ERROR(CheckReservation(free_memory, segment_bytes, segment_bytes, ranks));
  return AnonymousMemory::Reserve(Stride(segment_bytes) * ranks, AnonymousMemory::Sharing::kMappedAgain);
}

}  // namespace

void GatherRound::Arrive(int rank, std::string_view blob) {
  blobs_[static_cast<size_t>(rank)].emplace(blob);
  ++arrived_;
  if (!complete()) return;
  for (const std::optional<std::string>& arrived : blobs_) {
    all_.append(*arrived);
    ends_.push_back(all_.size());
  }
  blobs_.assign(blobs_.size(), std::nullopt);
}

absl::StatusOr<std::vector<std::string>> GatherRound::Result(absl::Duration timeout) const {
  if (complete()) {
    std::vector<std::string> result;
    result.reserve(ends_.size());
    size_t begin = 0;
    for (const size_t end : ends_) {
      result.push_back(all_.substr(begin, end - begin));
      begin = end;
    }
    return result;
  }
  std::vector<int> missing;
  for (size_t rank = 0; rank < blobs_.size(); ++rank) {
    if (!blobs_[rank]) missing.push_back(static_cast<int>(rank));
  }
  return MissingRanksError("all-gather of blobs", missing, timeout);
}

absl::StatusOr<NodeMemory> NodeReservations::Segments(int node, const std::vector<int>& ranks,
                                                      ReservationNumber number, size_t segment_bytes,
                                                      FreeMemoryReader free_memory) {
  auto round = rounds_.find(number);
  if (round == rounds_.end()) round = rounds_.emplace(number, Round{free_memory(), {}}).first;
  auto& [free_before, of_node] = round->second;
  auto found = of_node.find(node);
  if (found == of_node.end()) {
    found =
        of_node.emplace(node, Reservation{segment_bytes, Reserve(segment_bytes, ranks.size(), free_before)})
            .first;
  }
  const auto& [bytes, block] = found->second;
  WEFT_RETURN_IF_ERROR(block.status());
  WEFT_CHECK(bytes == segment_bytes, "all ranks of a node must reserve the same size");
  NodeMemory memory;
  memory.segment_bytes = segment_bytes;
  std::byte* base = block->base();
  for (const int rank : ranks) {
    memory.segments.push_back({rank, base});
    base += Stride(segment_bytes);
  }
  return memory;
}

}  // namespace weft::internal
