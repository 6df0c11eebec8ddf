// Interface of a rank's clock, sleeps and threads, and deadlines on that clock.
//
// SystemRuntime uses threads and real time; a simulation uses fibers and virtual time (simulation.h). Code
// that reads the clock, sleeps, copies data or starts threads through a Runtime runs unchanged on both.
//
// Thread safety: all members may be called from any thread of the rank.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include <absl/functional/function_ref.h>
#include <absl/status/statusor.h>
#include <absl/time/time.h>

namespace weft {

class Simulation;

class Runtime {
 public:
  // A thread or fiber. The destructor waits for its end.
  class Task {
   public:
    virtual ~Task() = default;
  };

  virtual ~Runtime() = default;

  virtual int64_t NowNs() const = 0;  // Monotonic clock.
  virtual void Yield() = 0;           // Lets other threads or fibers run.
  virtual void SleepFor(int64_t ns) = 0;
  // Futex semantics: sleeps if `word` holds `expected`, until WakeAll or for at most `timeout_ns`. May return
  // early. WakeAll wakes every thread or fiber of this process that sleeps on `word`; its caller changes the
  // word first.
  virtual void SleepOn(const std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns) = 0;
  virtual void WakeAll(const std::atomic<uint32_t>& word) = 0;
  struct MoveSize {
    size_t bytes;
    size_t cross_domain_bytes = 0;  // Bytes that cross between share domains of the node.
  };
  // Runs `move`, which reads and writes about `size.bytes` bytes. In a simulation the call takes virtual
  // time, and `move` runs at a random moment of it.
  virtual void Move(MoveSize size, absl::FunctionRef<void()> move) = 0;
  // Starts a thread or fiber that runs `body`. `purpose` completes the error "cannot start a thread for".
  // Errors: kResourceExhausted (the system gives the process no thread; names the limits). A fiber has none.
  virtual absl::StatusOr<std::unique_ptr<Task>> Start(std::string_view purpose,
                                                      std::function<void()> body) = 0;

  // The simulation that runs this rank; null outside a simulation.
  virtual Simulation* simulation() { return nullptr; }
};

// Runtime on threads, the system's clocks and process-private futexes.
class SystemRuntime final : public Runtime {
 public:
  int64_t NowNs() const override;
  void Yield() override;
  void SleepFor(int64_t ns) override;
  void SleepOn(const std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns) override;
  void WakeAll(const std::atomic<uint32_t>& word) override;
  void Move(MoveSize size, absl::FunctionRef<void()> move) override;
  absl::StatusOr<std::unique_ptr<Task>> Start(std::string_view purpose, std::function<void()> body) override;
};

// The end of a wait, on a runtime's monotonic clock. Steps of the system's time do not move it.
//
// Lifetime: the runtime must outlive it.
class Deadline {
 public:
  // Ends `timeout` from now. The timeout is clamped to [0, 1 year].
  Deadline(const Runtime& runtime, absl::Duration timeout);
  // Zero once it has passed.
  absl::Duration Left() const;
  bool HasPassed() const { return Left() == absl::ZeroDuration(); }

 private:
  const Runtime* runtime_;
  int64_t end_ns_;
};

}  // namespace weft
