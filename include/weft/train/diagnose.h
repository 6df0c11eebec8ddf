// Diagnosis of a failed run from the flight recorders of its ranks: which rank is late, in which operation,
// and which ranks disagree.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/types/span.h>

namespace weft {

// The flight recorder of one rank. docs/reliability.md describes its file.
struct FlightRecord {
  struct Lane {
    std::string name;
    uint64_t index = 0;      // Equal on all ranks of the group.
    std::vector<int> ranks;  // Ranks of its group.
    uint64_t submitted = 0;  // The last sequence that this rank submitted, in the record's generation.
  };
  struct Operation {
    std::string lane;
    uint64_t lane_index = 0;
    uint64_t sequence = 0;
    uint64_t generation = 0;
    std::string label;
    std::string description;  // Kind, elements, dtype, reduction and sequence.
    uint64_t counts_hash = 0;
    bool ended = false;  // *Ready* or *released*.
    int64_t submitted_ns = 0;
    std::string waiting_for;     // What the operation waits for, as text.
    std::vector<int> waits_for;  // The ranks that the text names.
  };
  int rank = 0;
  int ranks = 0;
  uint64_t generation = 0;  // The number of resets. A reset has ended the operations of earlier generations.
  std::string phase;
  std::string failure;
  // Ranks that the failure names: without a heartbeat, late, and awaited by the operation that failed.
  std::vector<int> silent, late, waits_for;
  std::vector<Lane> lanes;
  std::vector<Operation> operations;  // Oldest first.
};

// Parses the text of one file. `path` goes into messages.
// Errors: kDataLoss (not a flight recorder, or not of this version; names the path and the field).
absl::StatusOr<FlightRecord> ParseFlightRecord(std::string_view text, const std::string& path);

// Reads files and, of folders, the files rank-<N>.json.
// Errors: kNotFound, kPermissionDenied, kUnavailable, kDataLoss (names the path).
absl::StatusOr<std::vector<FlightRecord>> ReadFlightRecords(absl::Span<const std::string> paths);

// Returns one line. It names the ranks that disagree about an operation; or else the late ranks, the oldest
// operation that others wait for, and the phases of the late ranks; or else the ranks without a record; or
// else says that nothing is missing. A rank without a record is late only if the record of another names it.
// Errors: kDataLoss (no record, or records of runs with different numbers of ranks, or two of one rank).
absl::StatusOr<std::string> Diagnose(absl::Span<const FlightRecord> records);

}  // namespace weft
