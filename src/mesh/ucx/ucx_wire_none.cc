// The build without UCX.
#include "src/mesh/ucx/addressed_wire.h"

namespace weft::internal {

absl::StatusOr<std::unique_ptr<AddressedWire>> MakeUcxWire(int /*rank*/, int /*ranks*/,
                                                           const std::string& /*network*/) {
  return absl::FailedPreconditionError(
      "messages between nodes need UCX, without which this weft was built: install libucx-dev, and build "
      "with "
      "WEFT_UCX=ON");
}

}  // namespace weft::internal
