// A stack of its own on which a function runs until it hands control back: what simulated ranks run on.
//
// Thread safety: none; all fibres that switch among each other belong to one thread.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>

#include "src/mesh/simulation/fibre_sanitizer.h"

namespace weft::internal {

class Fibre {
 public:
  Fibre(size_t stack_bytes, std::function<void()> body);
  // One that has not finished is dropped: nothing on its stack is destroyed.
  ~Fibre();
  Fibre(const Fibre&) = delete;
  Fibre& operator=(const Fibre&) = delete;

  // Runs the fibre until it suspends or finishes. Not from within a fibre.
  void Resume();
  // Back to whoever resumed; from within this fibre only.
  void Suspend();
  bool finished() const { return finished_; }

 private:
  static void Enter(unsigned high, unsigned low);
  void Run();

  std::function<void()> body_;
  bool finished_ = false;
  size_t mapped_bytes_;
  std::byte* mapped_;  // A guard page, then the stack.
  ucontext_t own_{}, resumer_{};
  FibreSanitizer sanitizer_;
};

}  // namespace weft::internal
