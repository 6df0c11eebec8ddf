#include "src/comm/base/descriptor.h"

#include <tuple>

#include <absl/strings/str_cat.h>

#include "weft/core/status.h"

namespace weft {
namespace {

auto Key(const Descriptor& d) {
  return std::tie(d.sequence, d.identity, d.group_hash, d.counts_hash, d.total_count, d.generation, d.kind,
                  d.reduce, d.wire_compression, d.scale, d.leaves);
}

bool Reduces(OpKind kind) { return kind == OpKind::kReduceScatter || kind == OpKind::kAllReduce; }

}  // namespace

bool IsSameCollective(const Descriptor& a, const Descriptor& b) {
  return Key(a) == Key(b) && (a.dtype == b.dtype || a.any_dtype || b.any_dtype);
}

bool IsSameCollectiveOnNode(const Descriptor& a, const Descriptor& b) {
  const bool shares = a.kind == OpKind::kAllGatherShared && a.total_count > 0;
  return IsSameCollective(a, b) && (!shares || a.output == b.output);
}

std::string ToString(const Descriptor& descriptor) {
  std::string text = absl::StrCat(ToAbsl(Name(descriptor.kind)), " of ", descriptor.total_count, " ",
                                  ToAbsl(Name(descriptor.dtype)));
  if (Reduces(descriptor.kind)) absl::StrAppend(&text, " by ", ToAbsl(Name(descriptor.reduce)));
  if (descriptor.scale != 1.0) absl::StrAppend(&text, " times ", descriptor.scale);
  absl::StrAppend(&text, ", sequence ", descriptor.sequence);
  if (descriptor.generation != 0) absl::StrAppend(&text, ", generation ", descriptor.generation);
  return text;
}

std::string MismatchDetails(const Descriptor& a, const Descriptor& b) {
  if (a.group_hash != b.group_hash)
    return " (lanes of different groups: ranks called AddLane in different orders)";
  if (a.counts_hash != b.counts_hash) return " (different counts, ranges or roots)";
  if (a.wire_compression != b.wire_compression) {
    return absl::StrCat(" (wire compression: ", ToAbsl(Name(a.wire_compression)), " and ",
                        ToAbsl(Name(b.wire_compression)), ")");
  }
  if (IsSameCollective(a, b)) return " (shared outputs at different addresses in node memory)";
  if (a.identity == b.identity) return "";
  return absl::StrCat(" (identities ", absl::Hex(a.identity), " and ", absl::Hex(b.identity), ")");
}

}  // namespace weft
