// Tells AddressSanitizer which stack is in use; a variant for each build is chosen in CMake.
#pragma once

#include <cstddef>

namespace weft::internal {

class FibreSanitizer {
 public:
  void SetStack(const void* bottom, size_t bytes) {
    bottom_ = bottom;
    bytes_ = bytes;
  }
  // On the resumer's stack, before and after.
  void Entering();
  void Returned();
  // On the fibre's stack, after it was entered and before it is left.
  void Entered();
  void Leaving(bool for_good);
  // Of a fibre that is dropped before its end: whether its stack must stay, since it leads to memory that
  // nobody frees, and which would count as leaked.
  bool KeepsStack();

 private:
  const void* bottom_ = nullptr;
  size_t bytes_ = 0;
  const void* resumer_bottom_ = nullptr;
  size_t resumer_bytes_ = 0;
  void* resumer_frames_ = nullptr;
  void* own_frames_ = nullptr;
};

}  // namespace weft::internal
