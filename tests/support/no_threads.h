// Failing starts of threads, as at the limit of processes, which does not bind root.
#pragma once

#include <pthread.h>

#include <cstddef>

namespace weft::testing {

// While it exists, no thread of this process can start another one: the default stack is larger than all
// addresses. Threads that run go on.
//
// REQUIRES: one exists at a time.
class NoThreads {
 public:
  NoThreads() {
    constexpr size_t kStackBytes = size_t{1} << 52;
    pthread_getattr_default_np(&before_);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, kStackBytes);
    pthread_setattr_default_np(&attributes);
    pthread_attr_destroy(&attributes);
  }
  ~NoThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t before_;
};

}  // namespace weft::testing
