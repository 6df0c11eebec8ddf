#include "src/comm/messages/signal.h"

#include <array>
#include <cstddef>
#include <cstring>

#include <absl/strings/str_cat.h>

#include "src/comm/base/field_ranges.h"
#include "weft/core/status.h"

namespace weft {

template <>
inline constexpr auto kGreatest<SignalKind> = static_cast<uint8_t>(SignalKind::kNoMoreReceives);

std::string_view Name(SignalKind kind) {
  switch (kind) {
    case SignalKind::kAnnounce:
      return "announce";
    case SignalKind::kPushed:
      return "pushed";
    case SignalKind::kStaged:
      return "staged";
    case SignalKind::kGrant:
      return "grant";
    case SignalKind::kPulled:
      return "pulled";
    case SignalKind::kConsumed:
      return "consumed";
    case SignalKind::kInterest:
      return "interest";
    case SignalKind::kAsksWitness:
      return "asks witness";
    case SignalKind::kNoMoreSends:
      return "no more sends";
    case SignalKind::kNoMoreReceives:
      return "no more receives";
  }
  return "unknown";
}

absl::StatusOr<Signal> ParseSignal(int peer, std::string_view bytes) {
  if (bytes.size() != sizeof(Signal)) {
    return absl::InternalError(absl::StrCat("a message signal from rank ", peer, " has ", bytes.size(),
                                            " bytes, expected ", sizeof(Signal), kSameVersionRemedy));
  }
  constexpr std::array<FieldRange, 5> kFields = {
      {{"kind", offsetof(Signal, kind), kGreatest<SignalKind>},
       {"dtype", offsetof(Signal, dtype), kGreatest<DType>},
       {"kind of elements", offsetof(Signal, elements), kGreatest<ElementKind>},
       {"field for_whole_node", offsetof(Signal, for_whole_node), kGreatest<bool>},
       {"field is_unused", offsetof(Signal, is_unused), kGreatest<bool>}}};
  if (const auto unknown = UnknownField(kFields, bytes.data())) {
    return absl::InternalError(
        absl::StrCat("a message signal from rank ", peer, " has the ", *unknown, kSameVersionRemedy));
  }
  Signal signal;
  std::memcpy(&signal, bytes.data(), sizeof(signal));
  if (signal.bytes < 0 || signal.pieces < 0) return UnexpectedSignal(peer, signal, "with a negative size");
  return signal;
}

absl::Status UnexpectedSignal(int peer, const Signal& signal, std::string_view problem) {
  return absl::InternalError(absl::StrCat("rank ", peer, " has sent the signal '", ToAbsl(Name(signal.kind)),
                                          "' of message ", signal.number, ", ", ToAbsl(problem),
                                          kSameVersionRemedy));
}

}  // namespace weft
