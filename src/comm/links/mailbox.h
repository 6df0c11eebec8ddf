// Ring of small messages from one rank to another, in node memory.
//
// Memory order: the writer publishes an entry by a release store of `written`, and the reader frees it by a
// release store of `read`. Each counter has one writer.
//
// Thread safety: one thread of the writing rank and one of the reading rank at a time.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "src/comm/base/cache_line.h"

namespace weft {

class Mailbox {
 public:
  static constexpr size_t kMaxBytes = 120;
  static constexpr uint64_t kEntries = 16;

  // False if the ring is full. REQUIRES: at most kMaxBytes.
  bool Write(std::string_view bytes) {
    const uint64_t number = written_.load(std::memory_order_relaxed);
    if (number - read_.load(std::memory_order_acquire) >= kEntries) return false;
    Entry& entry = entries_[number % kEntries];
    entry.bytes = bytes.size();
    std::memcpy(entry.text.data(), bytes.data(), bytes.size());
    written_.store(number + 1, std::memory_order_release);
    return true;
  }
  // The next message; nothing if there is none.
  std::optional<std::string> Read() {
    const uint64_t number = read_.load(std::memory_order_relaxed);
    if (number == written_.load(std::memory_order_acquire)) return std::nullopt;
    const Entry& entry = entries_[number % kEntries];
    std::string message(entry.text.data(), std::min(entry.bytes, kMaxBytes));
    read_.store(number + 1, std::memory_order_release);
    return message;
  }
  // Called by the reader before it reads: true if a writer may have found the ring full since the last read.
  // A writer that has is told by the reads of half a ring at least.
  bool MayHoldBackWriter() const {
    return written_.load(std::memory_order_acquire) - read_.load(std::memory_order_relaxed) >= kEntries / 2;
  }
  // Empty the ring. REQUIRES: both ranks call theirs, and neither uses the ring meanwhile.
  void ResetWriter() { written_.store(0, std::memory_order_relaxed); }
  void ResetReader() { read_.store(0, std::memory_order_relaxed); }

 private:
  struct Entry {
    size_t bytes;
    std::array<char, kMaxBytes> text;
  };
  alignas(kLineBytes) std::atomic<uint64_t> written_{0};
  alignas(kLineBytes) std::atomic<uint64_t> read_{0};
  alignas(kLineBytes) std::array<Entry, kEntries> entries_{};
};

}  // namespace weft
