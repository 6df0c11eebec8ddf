// A std::mutex with annotations for Clang's thread-safety analysis, which does not know those of libstdc++.
#pragma once

#include <mutex>

#include <absl/base/thread_annotations.h>

namespace weft {

// Member names are those of the standard's Lockable, so that std::condition_variable_any accepts it.
class ABSL_LOCKABLE Mutex {
 public:
  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  bool try_lock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return mutex_.try_lock(); }

 private:
  std::mutex mutex_;
};

// Holds a Mutex for a scope.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) { mutex_.lock(); }
  // REQUIRES: this thread has locked `mutex`.
  MutexLock(Mutex& mutex, std::adopt_lock_t /*adopt*/) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) : mutex_(mutex) {}
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace weft
