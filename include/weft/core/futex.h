// Futex calls: sleep on a 32-bit word and wake its sleepers, within a process or between processes.
//
// Thread safety: free functions; any thread may call them.
#pragma once

#include <atomic>
#include <cstdint>

namespace weft {

// Sleeps if `word` holds `expected`, until a wake-up or for at most `timeout_ns`. May return early: check the
// word again. `between_processes`: the word lies in memory that processes share.
void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns,
               bool between_processes);
// Wakes every thread that sleeps on `word`. Change the word first. `between_processes` must match the
// sleepers'.
void FutexWakeAll(const std::atomic<uint32_t>& word, bool between_processes);

}  // namespace weft
