// All-gather of blobs over MPI, with a deadline whose error names the missing ranks.
//
// Every rank sends its blob to every other rank. MPI's own collectives cannot be cancelled, and do not report
// which ranks they wait for. Intended for a few small blobs at start-up.
//
// Thread safety: one caller at a time.
// Collective: AllGather (all ranks, in the same order).
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

  // Returns the blobs of all ranks, indexed by rank.
  // Errors: kDeadlineExceeded (names the missing ranks), kInvalidArgument (blob above 1 GiB), kInternal (MPI
  // failed).
  absl::StatusOr<std::vector<std::string>> AllGather(std::string_view blob, absl::Duration timeout);

 private:
  // Every message starts with its round number. Messages of rounds that this rank has abandoned are thereby
  // recognized and dropped.
  using RoundNumber = uint64_t;
  struct Transfer {
    std::shared_ptr<std::string> message;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  struct Peer {
    std::vector<Transfer> outgoing;
    Transfer incoming;
    bool arrived = false;  // True if `incoming` holds the message of the current round.
  };

  MpiBlobExchange(std::shared_ptr<MpiSession> session, MpiCommunicator comm);
  absl::Status Send(int peer, const std::shared_ptr<std::string>& message);
  absl::Status Advance(int peer);
  absl::Status StartReceive(int peer);
  absl::Status FinishReceive(Peer& from);
  bool IsFinished(int peer) const;
  absl::Status AdvanceAllUntil(absl::Duration timeout);

  std::shared_ptr<MpiSession> session_;
  MpiCommunicator comm_;
  const int rank_;
  std::vector<Peer> peers_;  // By rank; this rank's entry is unused.
  RoundNumber round_ = 0;
};

}  // namespace weft::internal
