// How a rank's code runs: as threads on the machine's clock, or as fibres on virtual time (simulation.h).
//
// Whatever takes time or waits goes through here, so that the same code runs either way: reading the clock,
// sleeping on a word, moving data, starting a thread.
//
// Thread safety: all members may be called from any thread of the rank.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include <absl/functional/function_ref.h>
#include <absl/time/time.h>

namespace weft {

class Simulation;

class Runtime {
 public:
  // A running thread or fibre; destroying it waits for its end.
  class Task {
   public:
    virtual ~Task() = default;
  };

  virtual ~Runtime() = default;

  virtual int64_t NowNs() const = 0;      // Monotonic.
  virtual absl::Time Now() const = 0;     // What deadlines are compared with.
  virtual void Yield() = 0;               // Lets others run.
  virtual void SleepFor(int64_t ns) = 0;  // Sleeps for so long.
  // Sleeps while `word` has the value `expected`, for at most `timeout_ns`; may wake early. WakeAll ends the
  // sleep of all who sleep on the word; change the word first.
  virtual void SleepOn(const std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns) = 0;
  virtual void WakeAll(const std::atomic<uint32_t>& word) = 0;
  // Runs `move`, which reads and writes about `bytes` of memory. In a simulation it takes its time, and
  // `move` runs at some moment of it.
  virtual void Move(size_t bytes, absl::FunctionRef<void()> move) = 0;
  virtual std::unique_ptr<Task> Start(std::function<void()> body) = 0;

  // Null unless time is virtual.
  virtual Simulation* simulation() { return nullptr; }
};

// Threads, the system's clock and futexes.
class SystemRuntime final : public Runtime {
 public:
  int64_t NowNs() const override;
  absl::Time Now() const override;
  void Yield() override;
  void SleepFor(int64_t ns) override;
  void SleepOn(const std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns) override;
  void WakeAll(const std::atomic<uint32_t>& word) override;
  void Move(size_t bytes, absl::FunctionRef<void()> move) override;
  std::unique_ptr<Task> Start(std::function<void()> body) override;
};

}  // namespace weft
