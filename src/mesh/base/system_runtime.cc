#include <sched.h>

#include <chrono>
#include <thread>
#include <utility>

#include "weft/core/futex.h"
#include "weft/core/status.h"
#include "weft/core/thread.h"
#include "weft/mesh/runtime.h"

namespace weft {
namespace {

class ThreadTask final : public Runtime::Task {
 public:
  explicit ThreadTask(std::thread thread) : thread_(std::move(thread)) {}
  ~ThreadTask() override { thread_.join(); }

 private:
  std::thread thread_;
};

}  // namespace

int64_t SystemRuntime::NowNs() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void SystemRuntime::Yield() { sched_yield(); }
void SystemRuntime::SleepFor(int64_t ns) { std::this_thread::sleep_for(std::chrono::nanoseconds(ns)); }

void SystemRuntime::SleepOn(const std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns) {
  FutexWait(word, expected, timeout_ns, /*between_processes=*/false);
}

void SystemRuntime::WakeAll(const std::atomic<uint32_t>& word) {
  FutexWakeAll(word, /*between_processes=*/false);
}

void SystemRuntime::Move(MoveSize /*size*/, absl::FunctionRef<void()> move) { move(); }

absl::StatusOr<std::unique_ptr<Runtime::Task>> SystemRuntime::Start(std::string_view purpose,
                                                                    std::function<void()> body) {
  WEFT_ASSIGN_OR_RETURN(std::thread thread, StartThread(purpose, std::move(body)));
  return std::make_unique<ThreadTask>(std::move(thread));
}

}  // namespace weft
