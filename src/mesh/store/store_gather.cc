#include "src/mesh/store/store_gather.h"

#include <optional>
#include <utility>

#include "src/mesh/base/deadline.h"
#include "weft/core/status.h"

namespace weft::internal {

std::string StoreGather::KeyOf(int64_t number, int rank) const {
  return absl::StrCat(prefix_, "/", number, "/", rank);
}

absl::StatusOr<std::vector<std::string>> StoreGather::AllGather(int64_t number, std::string_view blob,
                                                                absl::Duration timeout) {
  WEFT_CHECK(kept_.empty() || number > kept_.back(), "the numbers of gathers in a store must ascend");
  WEFT_RETURN_IF_ERROR(Annotate(store_->Set(KeyOf(number, rank_), blob), what_));
  kept_.push_back(number);
  std::vector<std::string> keys;
  keys.reserve(static_cast<size_t>(size_));
  for (int rank = 0; rank < size_; ++rank) keys.push_back(KeyOf(number, rank));
  auto values = store_->GetAll(keys, timeout);
  if (!values.ok()) return Annotate(values.status(), what_);

  std::vector<std::string> blobs;
  std::vector<int> missing;
  for (int rank = 0; rank < size_; ++rank) {
    std::optional<std::string>& value = (*values)[static_cast<size_t>(rank)];
    if (value) {
      blobs.push_back(*std::move(value));
    } else {
      missing.push_back(rank);
    }
  }
  if (!missing.empty()) return MissingRanksError(what_, missing, timeout);
  for (const int64_t earlier : kept_) {
    if (earlier != number) WEFT_RETURN_IF_ERROR(Annotate(store_->Delete(KeyOf(earlier, rank_)), what_));
  }
  kept_ = {number};
  return blobs;
}

}  // namespace weft::internal
