#include "src/comm/engine/reset_rounds.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "weft/core/status.h"

namespace weft {
namespace {

struct ResetBlob {
  static constexpr uint64_t kMagic = 0x7465736572746677;  // "wftreset".
  uint64_t magic = kMagic;
  uint32_t attempt = 0;
  ResetRounds::Phase phase = ResetRounds::Phase::kQuiet;
  int64_t link_count = 0;
};
static_assert(std::is_trivially_copyable_v<ResetBlob>);

// nullopt for a blob of another collective, which its rank has abandoned or has not left yet.
std::optional<ResetBlob> Parse(const std::string& bytes) {
  ResetBlob blob;
  if (bytes.size() != sizeof(blob)) return std::nullopt;
  std::memcpy(&blob, bytes.data(), sizeof(blob));
  return blob.magic == ResetBlob::kMagic ? std::optional(blob) : std::nullopt;
}

}  // namespace

absl::StatusOr<bool> ResetRounds::Agree(Phase phase, absl::Duration timeout) {
  ResetBlob own;
  own.attempt = attempt_;
  own.phase = phase;
  own.link_count = bootstrap_.link_count();
  auto gathered = bootstrap_.AllGatherBlob({reinterpret_cast<const char*>(&own), sizeof(own)}, timeout);
  if (!gathered.ok()) return Annotate(gathered.status(), "reset of the engine");
  bool agreed = true;
  int64_t link_count = own.link_count;
  for (const std::string& bytes : *gathered) {
    const std::optional<ResetBlob> blob = Parse(bytes);
    agreed = agreed && blob && blob->attempt == own.attempt && blob->phase == phase;
    if (!blob) continue;
    attempt_ = std::max(attempt_, blob->attempt);
    link_count = std::max(link_count, blob->link_count);
  }
  if (agreed) bootstrap_.SkipLinks(link_count);
  return agreed;
}

}  // namespace weft
