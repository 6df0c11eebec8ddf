// All-gather of blobs over MPI, with a deadline whose error names the missing ranks.
//
// MPI's own collectives cannot be canceled, and do not report which ranks they wait for. Each rank therefore
// relays blobs itself: see Note [Blob relays]. Intended for a few small blobs at start-up.
//
// Note [Relays of abandoned rounds]
// Problem: a late rank must complete a round that its peers gave up (Note [Reset rounds]), but the blobs of
//   some peers reach it only through others. A peer that has given up may not call the exchange again.
// Rule: the first round that misses its deadline starts a thread of the exchange. It passes on what this rank
//   owes in such rounds, and ends when all of them are complete or the exchange is destroyed.
// Why it suffices: a late rank only waits for messages that its peers can send without it, and each peer
//   sends them in a call or in this thread.
// Without it: the late rank misses its deadline in a round that nobody else waits for.
//
// Thread safety: one caller at a time.
// Collective: AllGather (all ranks, in the same order).
#pragma once

#include <atomic>
#include <chrono>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <absl/base/thread_annotations.h>
#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "src/mesh/mpi/mpi_session.h"
#include "src/mesh/rounds/blob_relay.h"
#include "weft/core/mutex.h"

namespace weft::internal {

class MpiBlobExchange {
 public:
  // `what` names the exchange in errors.
  // Collective: all ranks of `world`.
  static absl::StatusOr<std::unique_ptr<MpiBlobExchange>> Create(std::shared_ptr<MpiSession> session,
                                                                 MPI_Comm world, std::string what);
  ~MpiBlobExchange();

  // Returns the blobs of all ranks, indexed by rank.
  // Errors: kDeadlineExceeded (names the missing ranks), kInvalidArgument (blob above 1 GiB), kInternal (MPI
  // failed).
  absl::StatusOr<std::vector<std::string>> AllGather(std::string_view blob, absl::Duration timeout);

 private:
  using RoundNumber = BlobRelay::RoundNumber;
  using TimePoint = std::chrono::steady_clock::time_point;
  struct Transfer {
    std::shared_ptr<std::string> message;
    MPI_Request request = MPI_REQUEST_NULL;
    int peer = 0;
    RoundNumber round = 0;  // Of an outgoing message.
  };
  // A round that this rank has not finished. It may be ahead of this rank's calls.
  struct Round {
    BlobRelay relay;
    bool called = false;
    bool abandoned = false;  // The call missed its deadline.
    TimePoint gossip_at{};   // When this rank next gossips.
    std::chrono::nanoseconds gossip_interval{0};
  };

  MpiBlobExchange(std::shared_ptr<MpiSession> session, MpiCommunicator comm, std::string what);
  Round& RoundOf(RoundNumber number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Begins the next round, and returns its number.
  RoundNumber Call(std::string_view blob, absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  // Advances all rounds, and returns the blobs of round `number` once this rank has finished it.
  absl::StatusOr<std::optional<std::vector<std::string>>> AdvanceAndTake(RoundNumber number)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The blobs of round `number`, if this rank has finished it.
  std::optional<std::vector<std::string>> Take(RoundNumber number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status StartReceives() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status FinishReceives() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Deliver(const std::string& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status StartSends() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Send(RoundNumber round, const BlobRelay::Message& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status FinishSends() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsFinished(RoundNumber number, const Round& round) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // At the deadline: leaves a round that is not finished to the thread, and returns the error of the call.
  absl::StatusOr<std::vector<std::string>> TakeOrAbandon(RoundNumber number, absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Starts the thread. Errors: kResourceExhausted (the system gives the process none; names the limits).
  absl::Status StartRelaying() ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<int> AwaitedRanks(RoundNumber number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Body of the thread.
  void RelayAbandonedRounds();
  // False if no abandoned round is left, or the exchange has failed.
  bool AdvanceAbandonedRounds() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::shared_ptr<MpiSession> session_;
  Mutex mutex_;
  MpiCommunicator comm_;
  const std::string what_;
  const int rank_;
  const int size_;
  RoundNumber round_ ABSL_GUARDED_BY(mutex_) = 0;  // The last one that this rank called.
  std::map<RoundNumber, Round> rounds_ ABSL_GUARDED_BY(mutex_);
  std::list<Transfer> incoming_ ABSL_GUARDED_BY(mutex_);
  std::list<Transfer> outgoing_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);   // Of the thread.
  bool relaying_ ABSL_GUARDED_BY(mutex_) = false;  // The thread runs.
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace weft::internal
