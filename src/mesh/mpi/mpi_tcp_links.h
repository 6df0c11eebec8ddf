// Links over TCP sockets between the ranks of an MPI job. MPI only carries the addresses of the sockets.
//
// Thread safety: none.
// Collective: Create and Open (all ranks of `world`).
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "src/mesh/mpi/mpi_blob_exchange.h"
#include "src/mesh/mpi/mpi_session.h"
#include "weft/mesh/wire_link.h"

namespace weft::internal {

class MpiTcpLinks {
 public:
  // `network`: see MpiBootstrapOptions::network.
  // Errors: those of MpiBlobExchange::Create.
  static absl::StatusOr<std::unique_ptr<MpiTcpLinks>> Create(std::shared_ptr<MpiSession> session,
                                                             MPI_Comm world, int rank, std::string network);

  // Links that this rank has opened, tried to open or must skip. The n-th links of all ranks are one link.
  int64_t count() const { return std::max(rounds_, skip_until_); }
  // Peers have opened links up to number `count` without this rank: the next Open first takes part in the
  // exchanges of those, and its own has the number after `count`.
  void Skip(int64_t count) { skip_until_ = std::max(skip_until_, count); }
  // Opens the next link. Collective: all ranks, with equal counts.
  // Errors: those of OpenTcpLink; kDeadlineExceeded (names the ranks that did not call it in time).
  absl::StatusOr<std::unique_ptr<WireLink>> Open(absl::Duration timeout);

 private:
  MpiTcpLinks(std::unique_ptr<MpiBlobExchange> addresses, int rank, std::string network)
      : addresses_(std::move(addresses)), rank_(rank), network_(std::move(network)) {}

  const std::unique_ptr<MpiBlobExchange> addresses_;  // One round for each link.
  const int rank_;
  const std::string network_;
  int64_t rounds_ = 0;
  int64_t skip_until_ = 0;
};

}  // namespace weft::internal
