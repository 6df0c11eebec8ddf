#include "src/comm/descriptor.h"

#include <tuple>

#include <absl/strings/str_cat.h>

#include "weft/core/status.h"

namespace weft {
namespace {

auto Key(const Descriptor& d) {
  return std::tie(d.sequence, d.identity, d.counts_hash, d.total_count, d.generation, d.kind, d.dtype,
                  d.reduce);
}

bool Reduces(OpKind kind) { return kind == OpKind::kReduceScatter || kind == OpKind::kAllReduce; }

}  // namespace

bool Agree(const Descriptor& a, const Descriptor& b) { return Key(a) == Key(b); }

std::string ToString(const Descriptor& descriptor) {
  std::string text = absl::StrCat(ToAbsl(Name(descriptor.kind)), " of ", descriptor.total_count, " ",
                                  ToAbsl(Name(descriptor.dtype)));
  if (Reduces(descriptor.kind)) absl::StrAppend(&text, " by ", ToAbsl(Name(descriptor.reduce)));
  absl::StrAppend(&text, ", sequence ", descriptor.sequence, ", counts ", absl::Hex(descriptor.counts_hash),
                  ", identity ", absl::Hex(descriptor.identity));
  if (descriptor.generation != 0) absl::StrAppend(&text, ", generation ", descriptor.generation);
  return text;
}

}  // namespace weft
