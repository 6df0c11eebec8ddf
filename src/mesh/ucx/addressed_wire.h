// A WireLink in the making: it has an address, and needs those of its peers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

#include "weft/mesh/wire_link.h"

namespace weft::internal {

class AddressedWire : public WireLink {
 public:
  // What the links of other ranks need to connect to this one.
  virtual const std::string& address() const = 0;
  // REQUIRES: called once, before any message; `addresses` has one entry for each rank.
  virtual void SetAddresses(std::vector<std::string> addresses) = 0;
};

// `network`: see StoreBootstrapOptions::network.
// Errors: kFailedPrecondition (the build or the machine has no UCX), kInternal (UCX failed; has its message).
absl::StatusOr<std::unique_ptr<AddressedWire>> MakeUcxWire(int rank, int ranks, const std::string& network);

}  // namespace weft::internal
