#include "src/comm/base/descriptor.h"

#include <array>
#include <bit>
#include <cstddef>
#include <tuple>

#include <absl/strings/str_cat.h>

#include "src/comm/base/field_ranges.h"
#include "weft/core/hash.h"
#include "weft/core/status.h"

namespace weft {
namespace {

auto Key(const Descriptor& d) {
  return std::tie(d.sequence, d.identity, d.group_hash, d.counts_hash, d.domains_hash, d.total_count,
                  d.generation, d.root, d.kind, d.reduce, d.wire_compression, d.scale, d.leaves);
}

// True if all ranks of a node share the output.
bool SharesOutput(const Descriptor& d) {
  return d.kind == OpKind::kAllGatherShared && d.total_count > 0 && d.domains_hash == 0;
}

}  // namespace

std::optional<std::string> UnknownField(const char* descriptor) {
  constexpr std::array<FieldRange, 9> kFields = {
      {{"kind", offsetof(Descriptor, kind), kGreatest<OpKind>},
       {"dtype", offsetof(Descriptor, dtype), kGreatest<DType>},
       {"reduction", offsetof(Descriptor, reduce), kGreatest<ReduceOp>},
       {"wire compression", offsetof(Descriptor, wire_compression), kGreatest<WireCompression>},
       {"kind of elements", offsetof(Descriptor, elements), kGreatest<ElementKind>},
       {"field any_dtype", offsetof(Descriptor, any_dtype), kGreatest<bool>},
       {"field leaves", offsetof(Descriptor, leaves), kGreatest<bool>},
       {"field input_in_ring", offsetof(Descriptor, input_in_ring), kGreatest<bool>},
       {"field output_in_ring", offsetof(Descriptor, output_in_ring), kGreatest<bool>}}};
  return UnknownField(kFields, descriptor);
}

bool IsSameCollective(const Descriptor& a, const Descriptor& b) {
  return Key(a) == Key(b) && (a.any_dtype || b.any_dtype || (a.dtype == b.dtype && a.elements == b.elements));
}

bool IsSameCollectiveOnNode(const Descriptor& a, const Descriptor& b) {
  return IsSameCollective(a, b) && (!SharesOutput(a) || a.output == b.output);
}

uint64_t HashOnNode(const Descriptor& d) {
  const NodeAddress shared = SharesOutput(d) ? d.output : Descriptor::kNoAddress;
  const auto small = [](auto value, int shift) { return static_cast<uint64_t>(value) << shift; };
  const std::array<uint64_t, 12> fields = {d.sequence,
                                           d.identity,
                                           d.group_hash,
                                           d.counts_hash,
                                           d.domains_hash,
                                           static_cast<uint64_t>(d.total_count),
                                           std::bit_cast<uint64_t>(d.scale),
                                           d.generation,
                                           static_cast<uint64_t>(d.root),
                                           small(d.kind, 0) | small(d.dtype, 8) | small(d.reduce, 16) |
                                               small(d.wire_compression, 24) | small(d.leaves, 32) |
                                               small(d.elements, 40),
                                           static_cast<uint64_t>(shared.rank),
                                           shared.offset};
  return Hash64(fields.data(), sizeof(fields));
}

std::string ElementName(DType dtype, ElementKind elements) {
  std::string name(Name(dtype));
  if (elements != ElementKind::kPlain) absl::StrAppend(&name, " (", ToAbsl(Name(elements)), ")");
  return name;
}

std::string ToString(const Descriptor& descriptor) {
  std::string text = absl::StrCat(ToAbsl(Name(descriptor.kind)), " of ", descriptor.total_count, " ",
                                  ElementName(descriptor.dtype, descriptor.elements));
  if (descriptor.kind == OpKind::kBroadcast) {
    absl::StrAppend(&text, " from rank ", descriptor.root, " of the group");
  }
  if (Reduces(descriptor.kind)) absl::StrAppend(&text, " by ", ToAbsl(Name(descriptor.reduce)));
  if (descriptor.scale != 1.0) absl::StrAppend(&text, " times ", descriptor.scale);
  absl::StrAppend(&text, ", sequence ", descriptor.sequence);
  if (descriptor.generation != 0) absl::StrAppend(&text, ", generation ", descriptor.generation);
  return text;
}

std::string MismatchDetails(const Descriptor& a, const Descriptor& b) {
  if (a.group_hash != b.group_hash)
    return " (lanes of different groups: ranks called AddLane in different orders)";
  if (a.counts_hash != b.counts_hash) return " (different counts or ranges)";
  if (a.domains_hash != b.domains_hash)
    return " (different share domains: give all ranks the same, for example by WEFT_SHARE_DOMAIN)";
  if (a.wire_compression != b.wire_compression) {
    return absl::StrCat(" (wire compression: ", ToAbsl(Name(a.wire_compression)), " and ",
                        ToAbsl(Name(b.wire_compression)), ")");
  }
  if (IsSameCollective(a, b)) return " (shared outputs at different addresses in node memory)";
  if (a.identity == b.identity) return "";
  return absl::StrCat(" (identities ", absl::Hex(a.identity), " and ", absl::Hex(b.identity), ")");
}

}  // namespace weft
