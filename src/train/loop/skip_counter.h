// Counter of the steps of a run that did not update the weights.
//
// Thread safety: none.
#pragma once

#include <cstdint>

#include "src/train/loop/run_checkpoints.h"
#include "src/train/loop/trainer.h"

namespace weft {

// Steps without an update, of this run and those before it.
class SkipCounter {
 public:
  SkipCounter() = default;
  // Goes on from the skips of a checkpoint. Updates in backward allow no skip; those of runs without them do
  // not end this one.
  SkipCounter(const RunCheckpoints::Skips& earlier, bool updates_in_backward)
      : total_(earlier), ignored_(updates_in_backward ? earlier.counted : 0) {}

  void Add(const Trainer::StepResult& result) {
    total_.all += result.skipped ? 1 : 0;
    total_.counted += result.counts_as_skip ? 1 : 0;
  }
  const RunCheckpoints::Skips& total() const { return total_; }
  // Those that --max-skipped-steps limits.
  int64_t limited() const { return total_.counted - ignored_; }

 private:
  RunCheckpoints::Skips total_;
  int64_t ignored_ = 0;
};

}  // namespace weft
