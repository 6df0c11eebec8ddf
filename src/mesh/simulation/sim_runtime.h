// Runtime of a simulated rank: virtual time, and fibers as threads.
#pragma once

#include <memory>

#include "src/mesh/simulation/simulator.h"
#include "weft/mesh/runtime.h"

namespace weft::internal {

class SimRuntime final : public Runtime {
 public:
  SimRuntime(Simulator& simulator, int rank) : simulator_(simulator), rank_(rank) {}

  int64_t NowNs() const override { return simulator_.NowNs(); }
  void Yield() override {
    simulator_.ChargeDebt(rank_);
    SleepFor(simulator_.options().poll_ns);
  }
  void SleepFor(int64_t ns) override { simulator_.Park(NowNs() + simulator_.Delay(rank_, ns)); }
  void SleepOn(const std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns) override {
    simulator_.ChargeDebt(rank_);
    if (word.load() == expected) simulator_.SleepOn(&word, timeout_ns);
  }
  void WakeAll(const std::atomic<uint32_t>& word) override { simulator_.WakeAll(&word); }
  void Move(MoveSize size, absl::FunctionRef<void()> move) override;
  absl::StatusOr<std::unique_ptr<Task>> Start(std::string_view purpose, std::function<void()> body) override;
  Simulation* simulation() override { return &simulator_; }

 private:
  Simulator& simulator_;
  int rank_;
};

}  // namespace weft::internal
