// A user-level thread with its own stack, scheduled cooperatively. Simulated ranks run on fibers.
//
// Thread safety: none; all fibers that switch to each other belong to one thread.
#pragma once

#include <cstddef>
#include <functional>

#include "src/mesh/simulation/fiber_sanitizer.h"
#include "src/mesh/simulation/fiber_switch.h"

namespace weft::internal {

class Fiber {
 public:
  // With `is_guarded`, an overflow of the stack ends the process at once. Otherwise it is found when the
  // fiber suspends.
  Fiber(size_t stack_bytes, bool is_guarded, std::function<void()> body);
  // Discards a fiber that has not finished: objects on its stack are not destroyed.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the fiber until it suspends or finishes.
  // REQUIRES: the caller is not on a fiber.
  void Resume();
  // Switches back to the caller of Resume.
  // REQUIRES: the caller is on this fiber.
  void Suspend();
  bool finished() const { return finished_; }

 private:
  static void Enter(void* self);
  void Run();
  // Ends the process if the stack has overflowed into the page below it.
  void CheckStack() const;

  std::function<void()> body_;
  bool finished_ = false;
  size_t mapped_bytes_;
  std::byte* mapped_;  // A page that guards the stack, or ends with a mark; then the stack.
  const bool is_guarded_;
  SuspendedCode own_ = nullptr, resumer_ = nullptr;
  FiberSanitizer sanitizer_;
};

}  // namespace weft::internal
