// The links between the ranks of an MPI job, over MPI or over TCP sockets.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "src/mesh/mpi/mpi_session.h"
#include "weft/mesh/mpi_bootstrap.h"
#include "weft/mesh/wire_link.h"

namespace weft::internal {

class MpiLinks {
 public:
  virtual ~MpiLinks() = default;

  // Opens the next link. Collective: all ranks, with equal counts.
  // Errors: kDeadlineExceeded (not all ranks called it in time), kInternal (MPI failed), and those of
  //   OpenTcpLink.
  virtual absl::StatusOr<std::unique_ptr<WireLink>> Open(absl::Duration timeout) = 0;
  // Links that this rank has opened, tried to open or must skip. The n-th links of all ranks are one link.
  virtual int64_t count() const = 0;
  // Peers have opened links up to number `count` without this rank: the next Open first takes part in the
  // exchanges of those, and its own has the number after `count`.
  virtual void Skip(int64_t count) = 0;
  // See Bootstrap::TransportName.
  virtual std::string TransportName() const = 0;
};

// Links over MPI. `reason`: why MPI was chosen, for TransportName; empty if there was no choice.
// Lifetime: `world` must outlive the result.
std::unique_ptr<MpiLinks> MakeLinksOverMpi(std::shared_ptr<MpiSession> session, const MpiCommunicator& world,
                                           std::string reason);

// Links over TCP sockets: MPI only carries their addresses. `network`: see StoreBootstrapOptions::network.
// Collective: all ranks of `world`.
// Lifetime: `world` must outlive the result.
// Errors: kInternal (MPI failed).
absl::StatusOr<std::unique_ptr<MpiLinks>> MakeLinksOverTcp(std::shared_ptr<MpiSession> session,
                                                           const MpiCommunicator& world, std::string network);

}  // namespace weft::internal
