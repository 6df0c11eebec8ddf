// The engine room of a simulation: virtual time, what happens when, and the fibres that wait for it.
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

#include "src/mesh/simulation/fibre.h"
#include "weft/mesh/simulation.h"

namespace weft::internal {

class Simulator final : public Simulation {
 public:
  explicit Simulator(const SimOptions& options);

  int64_t NowNs() const override { return now_ns_; }
  int64_t Delay(int rank, int64_t ns) override;
  const SimOptions& options() const override { return options_; }
  void At(int64_t time_ns, std::function<void()> action) override;

  bool IsDead(int rank) const;
  // A number in [0, 1).
  double Draw();

  using FibreId = size_t;
  // A fibre of `rank` that starts at once, at the next look.
  FibreId Start(int rank, std::function<void()> body);
  // Until all fibres have ended, or nothing can happen any more.
  void Run();
  bool Finished(FibreId id) const { return fibres_[id]->fibre.finished(); }

  // For the running fibre. Park sleeps until `until_ns`, or Unpark.
  FibreId running() const { return *running_; }
  void Park(std::optional<int64_t> until_ns);
  void Unpark(FibreId id, int64_t delay_ns);
  // Parks until that fibre has ended.
  void Join(FibreId id);

  // Sleeping on words: see Runtime::SleepOn.
  void SleepOn(const void* word, int64_t timeout_ns);
  void WakeAll(const void* word);

  int64_t events() const { return events_; }
  uint64_t fingerprint() const { return fingerprint_; }

 private:
  struct RankFibre {
    RankFibre(int owner, std::function<void()> body)
        : rank(owner), fibre(SimOptions::kFibreStackBytes, std::move(body)) {}
    int rank;
    Fibre fibre;
    uint64_t sleep = 0;  // Number of the present sleep: wake-ups of earlier ones are stale.
    std::optional<FibreId> joiner;
  };
  struct Event {
    int64_t time_ns;
    uint64_t order;
    std::function<void()> action;
    bool operator>(const Event& other) const {
      return time_ns != other.time_ns ? time_ns > other.time_ns : order > other.order;
    }
  };
  void Resume(FibreId id, uint64_t sleep);

  const SimOptions options_;
  std::mt19937_64 random_;
  int64_t now_ns_ = 0;
  uint64_t next_order_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> queue_;
  std::vector<std::unique_ptr<RankFibre>> fibres_;
  std::optional<FibreId> running_;
  size_t unfinished_ = 0;
  absl::flat_hash_map<const void*, std::vector<FibreId>> sleepers_;
  int64_t events_ = 0;
  uint64_t fingerprint_ = 0;
};

}  // namespace weft::internal
