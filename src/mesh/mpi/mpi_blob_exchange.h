// The blob all-gather over MPI, with a deadline that names who is missing: every rank sends its blob to every
// other. Collectives of MPI cannot be given up, and do not say for whom they wait. Meant for a few small
// facts at start-up.
//
// Thread safety: one caller at a time.
// Collective: AllGather, by all ranks in the same order.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "src/mesh/mpi/mpi_session.h"

namespace weft::internal {

class MpiBlobExchange {
 public:
  // Collective: all ranks of `world`.
  static absl::StatusOr<std::unique_ptr<MpiBlobExchange>> Create(std::shared_ptr<MpiSession> session,
                                                                 MPI_Comm world);
  ~MpiBlobExchange();

  // Errors: kDeadlineExceeded (names ranks), kInvalidArgument (a blob above 1 GiB), kInternal (MPI failed).
  absl::StatusOr<std::vector<std::string>> AllGather(std::string_view blob, absl::Duration timeout);

 private:
  // Messages start with the number of their round: what came too late for an earlier one is recognised and
  // dropped.
  using RoundNumber = uint64_t;
  struct Transfer {
    std::shared_ptr<std::string> message;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  struct Peer {
    std::vector<Transfer> outgoing;
    Transfer incoming;
    bool arrived = false;  // In the current round: its message is in `incoming`.
  };

  MpiBlobExchange(std::shared_ptr<MpiSession> session, MpiCommunicator comm);
  absl::Status Send(int peer, const std::shared_ptr<std::string>& message);
  absl::Status Advance(int peer);
  absl::Status StartReceive(int peer);
  absl::Status FinishReceive(Peer& from);
  bool Finished(int peer) const;
  absl::Status AdvanceAllUntil(absl::Duration timeout);

  std::shared_ptr<MpiSession> session_;
  MpiCommunicator comm_;
  const int rank_;
  std::vector<Peer> peers_;  // By rank; the own entry is unused.
  RoundNumber round_ = 0;
};

}  // namespace weft::internal
