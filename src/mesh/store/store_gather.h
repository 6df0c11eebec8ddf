// Numbered all-gathers of blobs through a key-value store, with a deadline whose error names the missing
// ranks.
//
// Note [Trees in a store]
// Problem: if each rank reads the keys of all others, a round of P ranks takes P * P reads of the store.
// Rule: the ranks form a tree: the children of rank r are 8 r + 1, …, 8 r + 8. Each rank sets a key of its
//   own blob. A rank with children reads their subtrees and sets a key of its whole subtree. Then all read
//   that of rank 0. A rank that misses its deadline sets the key of its subtree to a mark: whoever reads the
//   mark reads the rank's own blob and the subtrees of its children instead. At its deadline, a rank does so
//   for every subtree whose key is not set. Up to nine ranks have no tree, which saves a hop: all read all
//   keys.
// Why it suffices: a rank reads at most 9 keys, unless ranks are late. A blob whose rank has called is found
//   without any other rank, so a late rank completes a round that its peers have given up, and an error names
//   exactly the ranks that have not called.
//
// Note [Rounds in a store]
// Problem: a store keeps every key until somebody deletes it. A rank may still read the keys of a round after
//   its peers have left the round, and may enter a round late that its peers have given up.
// Rule: each rank deletes its own keys of a round when it completes a later round.
// Why it suffices: a rank enters a round only after it has left the earlier ones. Whoever completes a round
//   has the blobs of all ranks in it, so no rank reads an earlier round any more. A rank that gave up a round
//   leaves its keys there, so that a late rank completes that round without waiting.
// Without it: the store grows with the number of rounds, or a late rank waits for a deleted key.
//
// Thread safety: one caller at a time.
// Collective: AllGather (all ranks, with ascending numbers; ranks with equal numbers belong together).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "weft/mesh/key_value_store.h"

namespace weft::internal {

class StoreGather {
 public:
  // `prefix` is the start of all keys. `what` names the gathers in errors.
  StoreGather(std::shared_ptr<KeyValueStore> store, std::string prefix, std::string what, int rank, int size)
      : store_(std::move(store)),
        prefix_(std::move(prefix)),
        what_(std::move(what)),
        rank_(rank),
        size_(size) {}

  // Returns the blobs of all ranks in the gather `number`, indexed by rank.
  // REQUIRES: `number` is greater than in every earlier call.
  // Errors: kDeadlineExceeded (names the missing ranks), and those of the store.
  absl::StatusOr<std::vector<std::string>> AllGather(int64_t number, std::string_view blob,
                                                     absl::Duration timeout);

 private:
  // A gather in progress.
  struct Round {
    int64_t number;
    std::chrono::steady_clock::time_point deadline;
    std::vector<std::optional<std::string>> blobs;  // By rank.
    int missing;                                    // Number of blobs.
  };

  // The ranks whose subtrees are all ranks.
  std::vector<int> Roots() const;
  std::vector<int> ChildrenOf(int rank) const;
  std::string BlobKey(int64_t number, int rank) const;
  // The key of the blobs of a rank's subtree. That of its blob if it has no children.
  std::string SubtreeKey(int64_t number, int rank) const;
  // Reads the subtrees of `ranks`, as far as their keys are set before the deadline.
  absl::Status ReadSubtrees(Round& round, std::vector<int> ranks);
  // Takes the value of a subtree's key. False if it is a mark.
  absl::StatusOr<bool> TakeSubtree(Round& round, int rank, std::string_view value) const;
  absl::Status ReadBlobs(Round& round, const std::vector<int>& ranks);
  absl::Status SetSubtree(const Round& round);
  absl::Status DeleteEarlierKeys(int64_t number);
  absl::StatusOr<std::vector<std::optional<std::string>>> Get(const Round& round,
                                                              const std::vector<std::string>& keys);
  static void Keep(Round& round, int rank, std::string_view blob);

  const std::shared_ptr<KeyValueStore> store_;
  const std::string prefix_;
  const std::string what_;
  const int rank_;
  const int size_;
  std::vector<int64_t> kept_;  // Gathers whose keys of this rank are still in the store.
};

}  // namespace weft::internal
