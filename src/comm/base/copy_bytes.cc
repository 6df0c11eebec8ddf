#include "src/comm/base/copy_bytes.h"

#include <cstdint>
#include <cstring>

#include "src/comm/base/stream_line.h"
#include "weft/core/topology.h"

namespace weft {
namespace {

// Distance at which a copy requests lines ahead of its reads: about a page.
constexpr size_t kPrefetchBytes = 4096;

}  // namespace

void CopyBytes(std::byte* target, const std::byte* source, size_t bytes, bool nontemporal) {
  if (!nontemporal || bytes < 2 * kLineBytes) {
    std::memcpy(target, source, bytes);
    return;
  }
  const size_t head = (kLineBytes - reinterpret_cast<uintptr_t>(target) % kLineBytes) % kLineBytes;
  std::memcpy(target, source, head);
  size_t done = head;
  for (; done + kLineBytes <= bytes; done += kLineBytes) {
    // The prefetchers of the processor stop at the end of a page.
    __builtin_prefetch(source + done + kPrefetchBytes);
    StreamLine(target + done, source + done);
  }
  std::memcpy(target + done, source + done, bytes - done);
}

bool ShouldBypassCaches(size_t bytes) {
  constexpr size_t kShare = 2;
  return kStreamsLines && bytes > static_cast<size_t>(HostTopology().last_level_cache_bytes) / kShare;
}

}  // namespace weft
