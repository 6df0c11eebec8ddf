// Trace of some steps of a run, in one file for all ranks (--trace, --trace-steps).
//
//   BeforeStep(n)  (the step runs on the calling thread)  AfterStep(n)    for every step; then Finish
//
// Note [Clocks]
// Problem: each host has a monotonic clock of its own. Without their offsets, a message may seem to arrive
//   before it was sent.
// Rule: when the trace begins, each rank on another node than rank 0 asks rank 0 for its time, several times.
//   The answer of the quickest exchange counts, and is taken for the middle of that exchange.
// Why it suffices: the offset is wrong by at most half of the shortest round trip. Clocks drift by some
//   microseconds a second, and a trace lasts for a few steps.
// Without it: the tracks of different hosts cannot be compared.
//
// Thread safety: none; the thread that runs the steps calls it.
// Collective: all ranks call the members with the same steps.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "weft/comm/comm_engine.h"
#include "weft/core/spans.h"
#include "weft/train/config.h"

namespace weft {

// The steps that --trace-steps names (`text`); a resumed run does only those from `next` on. Without it, the
// third to fifth step of a run that does steps `next` to `last`, as far as it has them, or else its last
// step. Errors: those of StepRange::Parse.
absl::StatusOr<StepRange> TracedSteps(const std::string& text, int64_t next, int64_t last);

class RunTrace {
 public:
  // Rank 0 writes the file `path` after the last of `steps`. Lifetime: `engine` must outlive it.
  RunTrace(CommEngine& engine, std::string path, StepRange steps, absl::Duration timeout);

  // Errors: those of an exchange between the ranks.
  absl::Status BeforeStep(int64_t step);
  // Errors: those of an exchange; on all ranks (IsAgreedError), those of writing the file (names the path).
  absl::Status AfterStep(int64_t step);
  // Writes the file if the run has ended between the first and the last of the steps. Errors: as AfterStep.
  absl::Status Finish();

  // The steps in the file, once it is written.
  std::optional<StepRange> written() const { return written_; }

 private:
  absl::Status Start(int64_t step);
  absl::Status Write();
  // The offset of rank 0's clock to this rank's. See Note [Clocks].
  absl::StatusOr<int64_t> MeasureClockOffset();
  absl::Status AnswerClockRequests(int rank);
  // On rank 0: the events of all ranks, as one JSON text. On other ranks: empty.
  absl::StatusOr<std::string> GatherEvents(const std::string& own);

  CommEngine& engine_;
  const std::string path_;
  const StepRange steps_;
  const absl::Duration timeout_;
  SpanRecorder recorder_;
  std::optional<ScopedSpanRecorder> installed_;  // During a step that is traced.
  std::optional<StepRange> traced_;              // Since Start.
  int64_t zero_ns_ = 0;
  std::optional<StepRange> written_;
};

}  // namespace weft
