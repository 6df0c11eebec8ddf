#include "src/comm/messages/signal.h"

#include <cstddef>
#include <cstring>

#include <absl/strings/str_cat.h>

#include "weft/core/status.h"

namespace weft {
namespace {

constexpr const char* kRemedy = ": run the same version of weft on all ranks";

}  // namespace

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
                                            " bytes, expected ", sizeof(Signal), kRemedy));
  }
  // Before the bytes become enumerators and bools.
  struct Field {
    const char* name;
    size_t offset;
    uint8_t greatest;
  };
  for (const Field& field :
       {Field{"kind", offsetof(Signal, kind), static_cast<uint8_t>(SignalKind::kNoMoreReceives)},
        Field{"dtype", offsetof(Signal, dtype), static_cast<uint8_t>(DType::kU8)},
        Field{"kind of elements", offsetof(Signal, elements), static_cast<uint8_t>(ElementKind::kBytes)},
        Field{"field tells_node", offsetof(Signal, tells_node), 1},
        Field{"field is_unused", offsetof(Signal, is_unused), 1}}) {
    const auto value = static_cast<uint8_t>(bytes[field.offset]);
    if (value <= field.greatest) continue;
    return absl::InternalError(absl::StrCat("a message signal from rank ", peer, " has the unknown ",
                                            field.name, " ", static_cast<int>(value), kRemedy));
  }
  Signal signal;
  std::memcpy(&signal, bytes.data(), sizeof(signal));
  if (signal.bytes < 0 || signal.pieces < 0) return UnexpectedSignal(peer, signal, "with a negative size");
  return signal;
}

absl::Status UnexpectedSignal(int peer, const Signal& signal, std::string_view problem) {
  return absl::InternalError(absl::StrCat("rank ", peer, " has sent the signal '", ToAbsl(Name(signal.kind)),
                                          "' of message ", signal.number, ", ", ToAbsl(problem), kRemedy));
}

}  // namespace weft
