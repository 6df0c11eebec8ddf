#include "src/mesh/ucx/open_ucx_wire.h"

#include "src/mesh/ucx/addressed_wire.h"
#include "src/mesh/ucx/node_only_wire.h"
#include "weft/core/status.h"

namespace weft::internal {
namespace {

// A rank gathers its address, or the error that left it without one, with a mark in front.
constexpr char kAddress = 'a';
constexpr char kError = 'e';

std::string Encode(const absl::StatusOr<std::unique_ptr<AddressedWire>>& wire) {
  if (wire.ok()) return kAddress + (*wire)->address();
  return kError + std::string(wire.status().message());
}

// The error of the lowest rank without an address.
absl::Status FirstError(const std::vector<std::string>& parts) {
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    if (parts[rank].front() == kAddress) continue;
    return absl::FailedPreconditionError(absl::StrCat("rank ", rank, ": ", parts[rank].substr(1)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<WireLink>> OpenUcxWire(const UcxWireOptions& options, GatherAddresses gather) {
  auto wire = MakeUcxWire(options.rank, options.nodes->size(), options.network);
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> parts, gather(Encode(wire)));
  if (const absl::Status error = FirstError(parts); !error.ok()) {
    if (options.nodes->node_count() > 1) return error;
    return std::make_unique<NodeOnlyWire>(error);
  }
  for (std::string& part : parts) part.erase(0, 1);
  (*wire)->SetAddresses(std::move(parts));
  return std::unique_ptr<WireLink>(*std::move(wire));
}

}  // namespace weft::internal
