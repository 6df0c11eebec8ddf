// Main program of tests that run in one process.
#include <gtest/gtest.h>

#ifdef __SANITIZE_THREAD__
#include <atomic>
#include <cstdint>

#include <absl/status/status.h>

// Abseil's own definition is in a library that is not instrumented: ThreadSanitizer would see where a copy of
// an error is counted, not where it is dropped, and report a race between the two threads.
namespace absl {
ABSL_NAMESPACE_BEGIN
__attribute__((weak)) void Status::UnrefNonInlined(uintptr_t rep) {
  status_internal::StatusRep* error = RepToPointer(rep);
  if (error->ref.fetch_sub(1, std::memory_order_acq_rel) == 1) delete error;
}
ABSL_NAMESPACE_END
}  // namespace absl
#endif

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
