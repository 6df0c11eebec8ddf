// The choice between slices that travel in runs and slices that travel alone.
#include "src/comm/links/run_trials.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

constexpr int64_t kSlice = 60'000;
constexpr int64_t kRun = 4;
constexpr int64_t kSlicesInFlight = 16;

// A receiver that takes `alone_ns` or `run_ns` for each slice, whichever way it travels. Slices in flight
// still travel the way that they were sent.
class Receiver {
 public:
  explicit Receiver(RunTrials& trials) : trials_(trials) {}

  void Receive(int64_t slices, double alone_ns, double run_ns) {
    for (int64_t arrived = 0; arrived < slices;) {
      if (in_flight_ == 0) is_run_ = trials_.uses_runs();
      if (in_flight_ == 0) in_flight_ = kSlicesInFlight;
      const int64_t message = is_run_ ? kRun : 1;
      now_ns_ += static_cast<int64_t>(static_cast<double>(message) * (is_run_ ? run_ns : alone_ns));
      trials_.Arrived(message * kSlice, message);
      trials_.EndPoll(now_ns_, /*any_in_flight=*/true, needs_trials_);
      in_flight_ -= message;
      arrived += message;
      in_runs_ += is_run_ ? message : 0;
    }
  }
  void Pause(int64_t ns) { now_ns_ += ns; }
  void SetNeedsTrials(bool needs_trials) { needs_trials_ = needs_trials; }
  // The part of the slices that have traveled in runs since the last call.
  double PartInRuns(int64_t slices, double alone_ns, double run_ns) {
    in_runs_ = 0;
    Receive(slices, alone_ns, run_ns);
    return static_cast<double>(in_runs_) / static_cast<double>(slices);
  }

 private:
  RunTrials& trials_;
  int64_t now_ns_ = 1'000;
  int64_t in_flight_ = 0;
  bool is_run_ = false;
  int64_t in_runs_ = 0;
  bool needs_trials_ = true;
};

// Slices until the first trial has ended, and from there until the next one has.
constexpr int64_t kTrial = RunTrials::kBlocks * RunTrials::kBlockSlices;
constexpr int64_t kFirst = RunTrials::kFirstSlices + kTrial + kSlicesInFlight;
constexpr int64_t kRound = RunTrials::kSlices + kTrial;

TEST(RunTrials, ChooseRunsThatAreFaster) {
  RunTrials trials;
  Receiver receiver(trials);
  EXPECT_FALSE(trials.uses_runs());
  receiver.Receive(kFirst, /*alone_ns=*/36'000, /*run_ns=*/22'000);
  EXPECT_TRUE(trials.uses_runs());
  EXPECT_GT(receiver.PartInRuns(3 * kRound, 36'000, 22'000), 0.95);
}

TEST(RunTrials, KeepSlicesAloneUnlessRunsAreMuchFaster) {
  for (const double run_ns : {33'000.0, 36'000.0, 50'000.0}) {
    RunTrials trials;
    Receiver receiver(trials);
    EXPECT_LT(receiver.PartInRuns(kFirst + 3 * kRound, /*alone_ns=*/36'000, run_ns), 0.07) << run_ns;
  }
}

TEST(RunTrials, ReturnOnceRunsAreSlower) {
  RunTrials trials;
  Receiver receiver(trials);
  receiver.Receive(kFirst, /*alone_ns=*/36'000, /*run_ns=*/22'000);
  receiver.Receive(kRound, /*alone_ns=*/36'000, /*run_ns=*/60'000);
  EXPECT_LT(receiver.PartInRuns(kRound, 36'000, 60'000), 0.07);
}

// All slices become faster in the middle of a trial, as they do once the rank's own part is copied.
TEST(RunTrials, IgnoreWhatSpeedsUpBothWays) {
  for (int64_t at = 0; at < kTrial; at += RunTrials::kBlockSlices / 2) {
    RunTrials trials;
    Receiver receiver(trials);
    receiver.Receive(RunTrials::kFirstSlices + at, /*alone_ns=*/80'000, /*run_ns=*/80'000);
    receiver.Receive(kFirst - RunTrials::kFirstSlices - at, /*alone_ns=*/40'000, /*run_ns=*/40'000);
    EXPECT_FALSE(trials.uses_runs()) << at;
  }
}

TEST(RunTrials, AreMadeOnlyWhereTheRateDoesNotTell) {
  RunTrials trials;
  Receiver receiver(trials);
  receiver.SetNeedsTrials(false);
  EXPECT_EQ(receiver.PartInRuns(2 * kRound, /*alone_ns=*/36'000, /*run_ns=*/22'000), 0);
  receiver.SetNeedsTrials(true);
  receiver.Receive(kFirst, 36'000, 22'000);
  receiver.SetNeedsTrials(false);
  EXPECT_EQ(receiver.PartInRuns(2 * kRound, 36'000, 60'000), 1) << "the choice stays";
}

TEST(RunTrials, DoNotCountPausesOfTheSender) {
  RunTrials trials;
  Receiver receiver(trials);
  for (int64_t slices = 0; slices < kFirst; slices += kSlicesInFlight) {
    receiver.Receive(kSlicesInFlight, /*alone_ns=*/36'000, /*run_ns=*/22'000);
    receiver.Pause(trials.uses_runs() ? 5'000'000 : 0);
  }
  EXPECT_TRUE(trials.uses_runs());
}

}  // namespace
}  // namespace weft
