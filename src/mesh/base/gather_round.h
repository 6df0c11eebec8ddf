// One gathering of blobs from ranks that share memory, and node memory for such ranks: the parts that do not
// depend on how they wait for each other.
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

class GatherRound {
 public:
  explicit GatherRound(int ranks) : blobs_(static_cast<size_t>(ranks)) {}

  void Arrive(int rank, std::string_view blob);
  bool complete() const { return arrived_ == blobs_.size(); }
  // The blobs in rank order. Errors: kDeadlineExceeded after `timeout` (names who is missing).
  absl::StatusOr<std::vector<std::string>> Result(absl::Duration timeout) const;
  // True when every rank has left: the round may go.
  bool Leave() { return ++left_ == blobs_.size(); }

 private:
  std::vector<std::optional<std::string>> blobs_;
  size_t arrived_ = 0;
  size_t left_ = 0;
};

// What the ranks of each node have reserved, in the order of their calls.
class NodeReservations {
 public:
  explicit NodeReservations(int nodes) : reserved_(static_cast<size_t>(nodes)) {}
  // The memory of a node's call, of which a failure is the whole node's. `free_bytes`: what the node may
  // take.
  absl::StatusOr<std::byte*> Base(int node, size_t call, size_t bytes,
                                  const absl::StatusOr<size_t>& free_bytes);

 private:
  std::vector<std::vector<absl::StatusOr<AnonymousMemory>>> reserved_;
};

}  // namespace weft::internal
