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
  Fiber(size_t stack_bytes, std::function<void()> body);
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

  std::function<void()> body_;
  bool finished_ = false;
  size_t mapped_bytes_;
  std::byte* mapped_;  // A guard page, then the stack.
  SuspendedCode own_ = nullptr, resumer_ = nullptr;
  FiberSanitizer sanitizer_;
};

}  // namespace weft::internal
