// Event loop of a simulation: virtual time, the event queue, and the fibers of all ranks.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/functional/any_invocable.h>

#include "src/mesh/simulation/fiber.h"
#include "src/mesh/simulation/shared_cores.h"
#include "weft/mesh/simulation.h"

namespace weft::internal {

class Simulator final : public Simulation {
 public:
  Simulator(const SimOptions& options, const NodeMap& nodes);

  int64_t NowNs() const override { return now_ns_; }
  int64_t Delay(int rank, int64_t ns) override;
  const SimOptions& options() const override { return options_; }
  void At(int64_t time_ns, absl::AnyInvocable<void()> action) override;

  std::shared_ptr<const void> SharedBetweenRanks(
      uint64_t key, absl::FunctionRef<std::shared_ptr<const void>()> make) override;
  void Compute(int rank, int64_t ns, int threads) override;
  // Adds core time that the next ChargeDebt of `rank` takes. For code that must not wait.
  void AddDebt(int rank, int64_t ns) { debts_ns_[static_cast<size_t>(rank)] += ns; }
  void ChargeDebt(int rank);

  bool IsDead(int rank) const;
  // Draws a number uniformly from [0, 1).
  double Draw();

  using FiberId = size_t;
  // Creates a fiber of `rank`, which first runs after the wake-up delay.
  FiberId Start(int rank, std::function<void()> body);
  // Runs events until all fibers have finished or the queue is empty.
  void Run();
  bool IsFinished(FiberId id) const { return fibers_[id]->fiber.finished(); }

  // The running fiber.
  // REQUIRES: the caller is on a fiber.
  FiberId running() const { return *running_; }
  // Suspends the running fiber until `until_ns`, if given, or until Unpark.
  void Park(std::optional<int64_t> until_ns);
  // Resumes a parked fiber after `delay_ns`.
  void Unpark(FiberId id, int64_t delay_ns);
  // Parks the running fiber until fiber `id` has finished.
  void Join(FiberId id);

  // As Runtime::SleepOn and WakeAll, on the address of the word. `wake_ns`: from a wake-up or the timeout
  // until the sleeper runs, before jitter.
  void SleepOn(const void* word, int64_t timeout_ns, int64_t wake_ns);
  void SleepOn(const void* word, int64_t timeout_ns) { SleepOn(word, timeout_ns, options_.wake_ns); }
  void WakeAll(const void* word, int64_t wake_ns);
  void WakeAll(const void* word) { WakeAll(word, options_.wake_ns); }

  int64_t events() const { return events_; }
  uint64_t fingerprint() const { return fingerprint_; }

 private:
  struct RankFiber {
    RankFiber(int owner, bool is_guarded, std::function<void()> body)
        : rank(owner), fiber(SimOptions::kFiberStackBytes, is_guarded, std::move(body)) {}
    int rank;
    Fiber fiber;
    uint64_t sleep = 0;             // Number of the current sleep. Wake-ups for earlier numbers are ignored.
    std::optional<FiberId> joiner;  // The fiber that waits in Join for this one.
  };
  // An event resumes a fiber or runs an action. Actions lie outside the events, because the queue often moves
  // events.
  struct Event {
    int64_t time_ns;
    uint64_t order;  // Insertion number; orders events at the same time.
    size_t target;   // Id of the fiber, or index in actions_.
    uint64_t sleep;  // The sleep of the fiber that the event ends, or kAction.
    bool operator>(const Event& other) const {
      return time_ns != other.time_ns ? time_ns > other.time_ns : order > other.order;
    }
  };
  // Each guard page takes two of the mappings that the system allows a process, mostly 65,530.
  static constexpr size_t kGuardedFibers = 8192;
  static constexpr uint64_t kAction = ~uint64_t{0};
  void Push(int64_t time_ns, size_t target, uint64_t sleep);
  void RunAction(size_t index);
  void Resume(FiberId id, uint64_t sleep);
  // Resumes fiber `id` at `time_ns`, unless its current sleep has ended by then.
  void ResumeAt(int64_t time_ns, FiberId id) { Push(time_ns, id, fibers_[id]->sleep); }

  const SimOptions options_;
  const NodeMap nodes_;
  std::vector<SharedCores> cores_;  // By node; empty if SimOptions::cores is unset.
  std::vector<int64_t> debts_ns_;   // By rank.
  std::mt19937_64 random_;
  int64_t now_ns_ = 0;
  uint64_t next_order_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> queue_;
  std::vector<absl::AnyInvocable<void()>> actions_;
  std::vector<size_t> free_actions_;  // Indices in actions_ that no event uses.
  std::vector<std::unique_ptr<RankFiber>> fibers_;
  std::optional<FiberId> running_;
  size_t unfinished_ = 0;
  absl::flat_hash_map<const void*, std::vector<FiberId>> sleepers_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<const void>> shared_;  // See SharedBetweenRanks.
  int64_t events_ = 0;
  uint64_t fingerprint_ = 0;
};

}  // namespace weft::internal
