// Shared state of in-process bootstraps: all-gather rounds and node memory reservations.
//
// These classes do not wait; the bootstrap waits for other ranks.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "src/mesh/base/anonymous_memory.h"

namespace weft::internal {

// One all-gather of blobs.
class GatherRound {
 public:
  explicit GatherRound(int ranks) : blobs_(static_cast<size_t>(ranks)) {}

  void Arrive(int rank, std::string_view blob);
  bool complete() const { return arrived_ == blobs_.size(); }
  // Returns the blobs in rank order. `timeout` appears in the error's message.
  // Errors: kDeadlineExceeded (names the missing ranks).
  absl::StatusOr<std::vector<std::string>> Result(absl::Duration timeout) const;
  // Records that a rank has its result. Returns true when the last rank leaves: delete the round then.
  bool Leave() { return ++left_ == blobs_.size(); }

 private:
  std::vector<std::optional<std::string>> blobs_;  // Empty once the round is complete.
  // The blobs of a complete round, end to end: with many ranks, most of the time of a round goes into copies.
  std::string all_;
  std::vector<size_t> ends_;
  size_t arrived_ = 0;
  size_t left_ = 0;
};

// Node memory reservations of each node, indexed by the number of the collective call.
class NodeReservations {
 public:
  explicit NodeReservations(int nodes) : reserved_(static_cast<size_t>(nodes)) {}
  // Returns the memory of call number `call` on `node`. The first rank that calls reserves it; if that fails,
  // all ranks of the node get its error. `free_bytes` is the node's free memory.
  absl::StatusOr<std::byte*> Base(int node, size_t call, size_t bytes,
                                  const absl::StatusOr<size_t>& free_bytes);

 private:
  std::vector<std::vector<absl::StatusOr<AnonymousMemory>>> reserved_;
};

}  // namespace weft::internal
