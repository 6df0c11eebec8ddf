// Annotations of fiber switches for AddressSanitizer and ThreadSanitizer. CMake chooses the implementation;
// other builds have an empty one.
#pragma once

#include <cstddef>

namespace weft::internal {

class FiberSanitizer {
 public:
  void SetStack(const void* bottom, size_t bytes) {
    bottom_ = bottom;
    bytes_ = bytes;
  }
  // Call on the resumer's stack: before the switch to the fiber, and after the switch back.
  void StartSwitchIn();
  void FinishSwitchOut();
  // Call on the fiber's stack: after the switch to it, and before the switch back. `finished`: the fiber does
  // not run again.
  void FinishSwitchIn();
  void StartSwitchOut(bool finished);
  // Call when a fiber is discarded before it has finished. True if its stack must stay mapped: LeakSanitizer
  // then reaches the memory that only this stack points to, and does not report it as leaked.
  bool RetainStack();
  // Call before the stack is unmapped. Frees the sanitizer's state of the fiber: memory that is mapped there
  // later must not be poisoned.
  void ReleaseStack();

 private:
  const void* bottom_ = nullptr;  // The fiber's stack.
  size_t bytes_ = 0;
  const void* resumer_bottom_ = nullptr;  // The resumer's stack.
  size_t resumer_bytes_ = 0;
  void* resumer_context_ = nullptr;  // The sanitizer's description of each side of a switch.
  void* own_context_ = nullptr;
};

}  // namespace weft::internal
