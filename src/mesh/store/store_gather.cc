#include "src/mesh/store/store_gather.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "src/mesh/base/deadline.h"
#include "src/mesh/rounds/blob_list.h"
#include "weft/core/status.h"

namespace weft::internal {
namespace {

constexpr int kChildren = 8;
constexpr int kMostRoots = kChildren + 1;  // Jobs of at most this many ranks have no tree.

// First byte of the value of a subtree's key.
constexpr char kWhole = '+';      // A list of all its blobs follows.
constexpr char kAbandoned = '-';  // The mark of a rank that has missed its deadline.

}  // namespace

std::vector<int> StoreGather::Roots() const {
  std::vector<int> roots(size_ <= kMostRoots ? static_cast<size_t>(size_) : 1);
  std::iota(roots.begin(), roots.end(), 0);
  return roots;
}

std::vector<int> StoreGather::ChildrenOf(int rank) const {
  std::vector<int> children;
  if (size_ <= kMostRoots) return children;
  const int64_t first = int64_t{kChildren} * rank + 1;
  for (int64_t child = first; child < std::min<int64_t>(first + kChildren, size_); ++child)
    children.push_back(static_cast<int>(child));
  return children;
}

std::string StoreGather::BlobKey(int64_t number, int rank) const {
  return absl::StrCat(prefix_, "/", number, "/", rank);
}

std::string StoreGather::SubtreeKey(int64_t number, int rank) const {
  return absl::StrCat(BlobKey(number, rank), ChildrenOf(rank).empty() ? "" : ".subtree");
}

void StoreGather::Keep(Round& round, int rank, std::string_view blob) {
  std::optional<std::string>& place = round.blobs[static_cast<size_t>(rank)];
  if (!place) --round.missing;
  place.emplace(blob);
}

absl::StatusOr<std::vector<std::string>> StoreGather::AllGather(int64_t number, std::string_view blob,
                                                                absl::Duration timeout) {
  WEFT_CHECK(kept_.empty() || number > kept_.back(), "the numbers of gathers in a store must ascend");
  Round round{number, DeadlineAfter(timeout), {}, size_};
  round.blobs.resize(static_cast<size_t>(size_));
  Keep(round, rank_, blob);
  WEFT_RETURN_IF_ERROR(Annotate(store_->Set(BlobKey(number, rank_), blob), what_));
  kept_.push_back(number);
  if (const std::vector<int> children = ChildrenOf(rank_); !children.empty()) {
    WEFT_RETURN_IF_ERROR(ReadSubtrees(round, children));
    WEFT_RETURN_IF_ERROR(SetSubtree(round));
  }
  if (round.missing > 0) WEFT_RETURN_IF_ERROR(ReadSubtrees(round, Roots()));
  if (round.missing > 0) {
    std::vector<int> missing;
    for (int rank = 0; rank < size_; ++rank) {
      if (!round.blobs[static_cast<size_t>(rank)]) missing.push_back(rank);
    }
    return MissingRanksError(what_, missing, timeout);
  }
  Report(DeleteEarlierKeys(number));  // The next gather tries again.
  std::vector<std::string> blobs;
  blobs.reserve(round.blobs.size());
  for (std::optional<std::string>& found : round.blobs) blobs.push_back(*std::move(found));
  return blobs;
}

absl::StatusOr<std::vector<std::optional<std::string>>> StoreGather::Get(
    const Round& round, const std::vector<std::string>& keys) {
  const auto left = absl::FromChrono(round.deadline - std::chrono::steady_clock::now());
  auto values = store_->GetAll(keys, std::max(left, absl::ZeroDuration()));
  if (!values.ok()) return Annotate(values.status(), what_);
  return values;
}

absl::Status StoreGather::ReadSubtrees(Round& round, std::vector<int> ranks) {
  while (!ranks.empty()) {
    std::vector<std::string> keys;
    keys.reserve(ranks.size());
    for (const int rank : ranks) keys.push_back(SubtreeKey(round.number, rank));
    WEFT_ASSIGN_OR_RETURN(const auto values, Get(round, keys));
    std::vector<int> alone;  // Ranks whose own blobs are read.
    std::vector<int> below;
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (values[i]) {
        WEFT_ASSIGN_OR_RETURN(const bool whole, TakeSubtree(round, ranks[i], *values[i]));
        if (whole) continue;
      }
      const std::vector<int> children = ChildrenOf(ranks[i]);
      if (!children.empty() && !round.blobs[static_cast<size_t>(ranks[i])]) alone.push_back(ranks[i]);
      below.insert(below.end(), children.begin(), children.end());
    }
    if (!alone.empty()) WEFT_RETURN_IF_ERROR(ReadBlobs(round, alone));
    ranks = std::move(below);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> StoreGather::TakeSubtree(Round& round, int rank, std::string_view value) const {
  if (ChildrenOf(rank).empty()) {
    Keep(round, rank, value);
    return true;
  }
  if (value.size() == 1 && value.front() == kAbandoned) return false;
  const auto list =
      !value.empty() && value.front() == kWhole ? ParseBlobs(value.substr(1), size_) : std::nullopt;
  if (!list) {
    return absl::InternalError(absl::StrCat(what_, ": the store has a malformed value at ",
                                            SubtreeKey(round.number, rank),
                                            ": another program uses its keys; set another prefix"));
  }
  for (const RankBlob& entry : *list) Keep(round, entry.rank, entry.blob);
  return true;
}

absl::Status StoreGather::ReadBlobs(Round& round, const std::vector<int>& ranks) {
  std::vector<std::string> keys;
  keys.reserve(ranks.size());
  for (const int rank : ranks) keys.push_back(BlobKey(round.number, rank));
  WEFT_ASSIGN_OR_RETURN(const auto values, Get(round, keys));
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (values[i]) Keep(round, ranks[i], *values[i]);
  }
  return absl::OkStatus();
}

absl::Status StoreGather::SetSubtree(const Round& round) {
  std::string value(1, kWhole);
  std::vector<int> ranks = {rank_};
  for (size_t i = 0; i < ranks.size(); ++i) {  // `ranks` grows.
    const std::optional<std::string>& blob = round.blobs[static_cast<size_t>(ranks[i])];
    if (!blob) {
      value = kAbandoned;
      break;
    }
    AppendBlob(value, {ranks[i], *blob});
    for (const int child : ChildrenOf(ranks[i])) ranks.push_back(child);
  }
  return Annotate(store_->Set(SubtreeKey(round.number, rank_), value), what_);
}

absl::Status StoreGather::DeleteEarlierKeys(int64_t number) {
  for (const int64_t earlier : kept_) {
    if (earlier == number) continue;
    WEFT_RETURN_IF_ERROR(Annotate(store_->Delete(BlobKey(earlier, rank_)), what_));
    if (!ChildrenOf(rank_).empty())
      WEFT_RETURN_IF_ERROR(Annotate(store_->Delete(SubtreeKey(earlier, rank_)), what_));
  }
  kept_ = {number};
  return absl::OkStatus();
}

}  // namespace weft::internal
