#include "src/mesh/base/gather_round.h"

#include "src/mesh/base/deadline.h"
#include "weft/core/status.h"

namespace weft::internal {
namespace {

absl::StatusOr<AnonymousMemory> Reserve(size_t bytes, const absl::StatusOr<size_t>& free_bytes) {
  WEFT_RETURN_IF_ERROR(free_bytes.status());
  return AnonymousMemory::Reserve(bytes, *free_bytes, AnonymousMemory::Sharing::kMappedAgain);
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

absl::StatusOr<std::byte*> NodeReservations::Base(int node, size_t call, size_t bytes,
                                                  const absl::StatusOr<size_t>& free_bytes) {
  auto& reserved = reserved_[static_cast<size_t>(node)];
  if (call == reserved.size()) reserved.push_back(Reserve(bytes, free_bytes));
  WEFT_RETURN_IF_ERROR(reserved[call].status());
  WEFT_CHECK(reserved[call]->bytes() == bytes, "all ranks of a node must reserve the same size");
  return reserved[call]->base();
}

}  // namespace weft::internal
