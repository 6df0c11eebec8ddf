// Numbered all-gathers of blobs through a key-value store, with a deadline whose error names the missing
// ranks.
//
// Note [Rounds in a store]
// Problem: a store keeps every key until somebody deletes it. A rank may still read the keys of a round after
//   its peers have left the round, and may enter a round late that its peers have given up.
// Rule: each rank deletes its own key of a round when it completes a later round.
// Why it suffices: a rank enters a round only after it has left the earlier ones. Whoever completes a round
//   has seen the keys of all ranks in it, so no rank reads an earlier round any more. A rank that gave up a
//   round leaves its key there, so that a late rank completes that round without waiting.
// Without it: the store grows with the number of rounds, or a late rank waits for a deleted key.
//
// Thread safety: one caller at a time.
// Collective: AllGather (all ranks, with ascending numbers; ranks with equal numbers belong together).
#pragma once

#include <cstdint>
#include <memory>
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
  std::string KeyOf(int64_t number, int rank) const;

  const std::shared_ptr<KeyValueStore> store_;
  const std::string prefix_;
  const std::string what_;
  const int rank_;
  const int size_;
  std::vector<int64_t> kept_;  // Gathers whose key of this rank is still in the store.
};

}  // namespace weft::internal
