// Sleeping on a 32-bit word, also between processes.
#pragma once

#include <atomic>
#include <cstdint>

namespace weft {

// Sleeps while *word == expected, for at most timeout_ns; may wake early.
void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns,
               bool between_processes);
void FutexWakeAll(const std::atomic<uint32_t>& word, bool between_processes);

}  // namespace weft
