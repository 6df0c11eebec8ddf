// Shared state of in-process bootstraps: all-gather rounds and node memory reservations.
//
// These classes do not wait; the bootstrap waits for other ranks.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <absl/functional/function_ref.h>
#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "src/mesh/host/anonymous_memory.h"
#include "weft/mesh/bootstrap.h"

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

// Place of a reservation in the calls of a rank. Gathers that succeed have the same number on all ranks. If a
// rank misses a deadline and reserves nothing, its reservations match those of its peers again after the next
// gather that succeeds.
struct ReservationNumber {
  size_t gathers = 0;       // Gathers before it.
  size_t reservations = 0;  // Reservations since the last gather.

  friend bool operator<(const ReservationNumber& a, const ReservationNumber& b) {
    return std::tie(a.gathers, a.reservations) < std::tie(b.gathers, b.reservations);
  }
};

// Numbers the collective calls of one rank.
class CallNumbers {
 public:
  size_t NextGather() {
    next_.reservations = 0;
    return next_.gathers++;
  }
  ReservationNumber NextReservation() {
    const ReservationNumber number = next_;
    ++next_.reservations;
    return number;
  }

 private:
  ReservationNumber next_;
};

// Node memory reservations of each node. The segments of a reservation are contiguous in rank order, each
// 64-byte aligned.
class NodeReservations {
 public:
  using FreeMemoryReader = absl::FunctionRef<absl::StatusOr<FreeMemory>()>;

  // Returns the segments of reservation `number` for `ranks`, the ranks of `node`. The first rank that calls
  // reserves them; if that fails, all ranks of the node get its error. `free_memory` returns that of each
  // node. It is called once for a number: later, the addresses that it divides among all nodes would lack
  // the segments of some of them.
  absl::StatusOr<NodeMemory> Segments(int node, const std::vector<int>& ranks, ReservationNumber number,
                                      size_t segment_bytes, FreeMemoryReader free_memory);

 private:
  struct Reservation {
    size_t segment_bytes;
    absl::StatusOr<AnonymousMemory> memory;
  };
  // Reservations of one number.
  struct Round {
    absl::StatusOr<FreeMemory> free_memory;  // Of each node, before the first of them.
    std::map<int, Reservation> of_node;
  };
  std::map<ReservationNumber, Round> rounds_;
};

}  // namespace weft::internal
