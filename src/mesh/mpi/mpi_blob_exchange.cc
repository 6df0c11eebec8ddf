#include "src/mesh/mpi/mpi_blob_exchange.h"

#include <algorithm>
#include <utility>

#include "src/mesh/base/backoff.h"
#include "src/mesh/base/deadline.h"
#include "weft/core/status.h"
#include "weft/core/thread.h"

namespace weft::internal {
namespace {

constexpr int kTag = 0;

// A rank gossips so many times in the second half of its timeout. See Note [Blob relays].
constexpr int kGossips = 32;

}  // namespace

absl::StatusOr<std::unique_ptr<MpiBlobExchange>> MpiBlobExchange::Create(std::shared_ptr<MpiSession> session,
                                                                         MPI_Comm world, std::string what) {
  WEFT_ASSIGN_OR_RETURN(MpiCommunicator comm, MpiCommunicator::Duplicate(*session, world));
  return std::unique_ptr<MpiBlobExchange>(
      new MpiBlobExchange(std::move(session), std::move(comm), std::move(what)));
}

MpiBlobExchange::MpiBlobExchange(std::shared_ptr<MpiSession> session, MpiCommunicator comm, std::string what)
    : session_(std::move(session)),
      comm_(std::move(comm)),
      what_(std::move(what)),
      rank_(comm_.rank()),
      size_(comm_.size()) {}

MpiBlobExchange::~MpiBlobExchange() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
  const MutexLock lock(mutex_);
  // Only rounds that missed their deadline leave requests behind. See Note [MPI teardown].
  for (auto* const transfers : {&incoming_, &outgoing_}) {
    for (Transfer& transfer : *transfers) session_->Abandon(transfer.request, transfer.message);
  }
  comm_.Retire();  // Messages of an abandoned round may still arrive.
}

absl::StatusOr<std::vector<std::string>> MpiBlobExchange::AllGather(std::string_view blob,
                                                                    absl::Duration timeout) {
  if (blob.size() > BlobRelay::kMaxBlobBytes) {
    const MutexLock lock(mutex_);
    ++round_;  // A rejected blob uses its round, too, so that later rounds match.
    return absl::InvalidArgumentError(absl::StrCat("cannot gather a blob of ", blob.size(),
                                                   " bytes: the maximum is ", BlobRelay::kMaxBlobBytes));
  }
  const TimePoint deadline = DeadlineAfter(timeout);
  const RoundNumber number = Call(blob, timeout);
  Backoff backoff;
  while (true) {
    WEFT_ASSIGN_OR_RETURN(auto blobs, AdvanceAndTake(number));
    if (blobs) {
      session_->SetPeersMissing(absl::OkStatus());
      return *std::move(blobs);
    }
    if (std::chrono::steady_clock::now() >= deadline) break;
    backoff.Pause();
  }
  absl::StatusOr<std::vector<std::string>> blobs = TakeOrAbandon(number, timeout);
  session_->SetPeersMissing(blobs.status());
  return blobs;
}

MpiBlobExchange::Round& MpiBlobExchange::RoundOf(RoundNumber number) {
  const auto found = rounds_.find(number);
  if (found != rounds_.end()) return found->second;
  return rounds_.emplace(number, Round{BlobRelay(number, rank_, size_)}).first->second;
}

MpiBlobExchange::RoundNumber MpiBlobExchange::Call(std::string_view blob, absl::Duration timeout) {
  constexpr std::chrono::nanoseconds kShortestInterval = std::chrono::milliseconds(1);
  const MutexLock lock(mutex_);
  // In one critical section: Deliver drops messages of rounds that were called and are not kept.
  const RoundNumber number = ++round_;
  Round& round = RoundOf(number);
  round.called = true;
  round.gossip_at = DeadlineAfter(timeout / 2);
  round.gossip_interval =
      std::max(kShortestInterval, (round.gossip_at - std::chrono::steady_clock::now()) / kGossips);
  round.relay.Contribute(blob);
  return number;
}

absl::StatusOr<std::optional<std::vector<std::string>>> MpiBlobExchange::AdvanceAndTake(RoundNumber number) {
  const MutexLock lock(mutex_);
  WEFT_RETURN_IF_ERROR(failure_);
  WEFT_RETURN_IF_ERROR(Advance());
  return Take(number);
}

std::optional<std::vector<std::string>> MpiBlobExchange::Take(RoundNumber number) {
  const auto found = rounds_.find(number);
  if (!IsFinished(number, found->second)) return std::nullopt;
  std::optional<std::vector<std::string>> blobs(found->second.relay.TakeBlobs());
  rounds_.erase(found);
  return blobs;
}

// MPI sends a large message only while the sender calls MPI. A rank therefore also waits for its own sends.
bool MpiBlobExchange::IsFinished(RoundNumber number, const Round& round) const {
  return round.relay.complete() && std::none_of(outgoing_.begin(), outgoing_.end(),
                                                [&](const Transfer& sent) { return sent.round == number; });
}

absl::Status MpiBlobExchange::Advance() {
  WEFT_RETURN_IF_ERROR(StartReceives());
  WEFT_RETURN_IF_ERROR(FinishReceives());
  WEFT_RETURN_IF_ERROR(StartSends());
  return FinishSends();
}

absl::Status MpiBlobExchange::StartReceives() {
  while (true) {
    int found = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    WEFT_RETURN_IF_ERROR(
        MpiStatus(MPI_Improbe(MPI_ANY_SOURCE, kTag, comm_.get(), &found, &message, &status), "MPI_Improbe"));
    if (found == 0) return absl::OkStatus();
    int bytes = 0;
    WEFT_RETURN_IF_ERROR(MpiStatus(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count"));
    Transfer& incoming = incoming_.emplace_back();
    incoming.peer = status.MPI_SOURCE;
    incoming.message = std::make_shared<std::string>(static_cast<size_t>(bytes), '\0');
    WEFT_RETURN_IF_ERROR(MpiStatus(
        MPI_Imrecv(incoming.message->data(), bytes, MPI_BYTE, &message, &incoming.request), "MPI_Imrecv"));
  }
}

absl::Status MpiBlobExchange::FinishReceives() {
  for (auto it = incoming_.begin(); it != incoming_.end();) {
    int done = 0;
    WEFT_RETURN_IF_ERROR(MpiStatus(MPI_Test(&it->request, &done, MPI_STATUS_IGNORE), "MPI_Test (receive)"));
    if (done == 0) {
      ++it;
      continue;
    }
    const std::shared_ptr<std::string> message = std::move(it->message);
    const int peer = it->peer;
    it = incoming_.erase(it);
    WEFT_RETURN_IF_ERROR(Annotate(Deliver(*message), absl::StrCat("message of rank ", peer)));
  }
  return absl::OkStatus();
}

absl::Status MpiBlobExchange::Deliver(const std::string& message) {
  const std::optional<RoundNumber> number = BlobRelay::RoundOf(message);
  if (!number)
    return absl::InternalError("no message of the blob exchange: do all ranks run the same build?");
  const bool is_finished = *number <= round_ && !rounds_.contains(*number);
  return is_finished ? absl::OkStatus() : RoundOf(*number).relay.Receive(message);
}

absl::Status MpiBlobExchange::StartSends() {
  const TimePoint now = std::chrono::steady_clock::now();
  for (auto& [number, round] : rounds_) {
    if (round.called && now >= round.gossip_at) {
      round.relay.Gossip();
      round.gossip_at = now + round.gossip_interval;
    }
    for (const BlobRelay::Message& message : round.relay.TakeMessages())
      WEFT_RETURN_IF_ERROR(Send(number, message));
  }
  return absl::OkStatus();
}

absl::Status MpiBlobExchange::Send(RoundNumber round, const BlobRelay::Message& message) {
  Transfer sent{message.bytes, MPI_REQUEST_NULL, message.peer, round};
  WEFT_RETURN_IF_ERROR(MpiStatus(MPI_Isend(sent.message->data(), static_cast<int>(sent.message->size()),
                                           MPI_BYTE, sent.peer, kTag, comm_.get(), &sent.request),
                                 "MPI_Isend"));
  outgoing_.push_back(std::move(sent));
  return absl::OkStatus();
}  // NOLINT(clang-analyzer-optin.mpi.MPI-Checker): FinishSends tests the request.

absl::Status MpiBlobExchange::FinishSends() {
  for (auto it = outgoing_.begin(); it != outgoing_.end();) {
    int done = 0;
    WEFT_RETURN_IF_ERROR(MpiStatus(MPI_Test(&it->request, &done, MPI_STATUS_IGNORE), "MPI_Test (send)"));
    it = done != 0 ? outgoing_.erase(it) : std::next(it);
  }
  return absl::OkStatus();
}

// Returns the ranks that have not called. If all have, returns those whose blobs are still with relays. If
// there are none of these either, returns those that have not taken this rank's messages.
std::vector<int> MpiBlobExchange::AwaitedRanks(RoundNumber number) {
  const BlobRelay& relay = RoundOf(number).relay;
  std::vector<int> ranks = relay.MissingRanks();
  if (ranks.empty()) ranks = relay.MissingBlobs();
  if (!ranks.empty()) return ranks;
  for (const Transfer& sent : outgoing_) {
    if (sent.round == number) ranks.push_back(sent.peer);
  }
  return ranks;
}

absl::StatusOr<std::vector<std::string>> MpiBlobExchange::TakeOrAbandon(RoundNumber number,
                                                                        absl::Duration timeout) {
  std::vector<int> missing;
  bool starts_thread = false;
  {
    const MutexLock lock(mutex_);
    // The thread of an earlier round may have finished this one since the call has looked.
    if (std::optional<std::vector<std::string>> blobs = Take(number)) return *std::move(blobs);
    missing = AwaitedRanks(number);
    RoundOf(number).abandoned = true;
    starts_thread = !std::exchange(relaying_, true);
  }
  const absl::Status error = MissingRanksError(what_, missing, timeout);
  const absl::Status started = starts_thread ? StartRelaying() : absl::OkStatus();
  if (started.ok()) return error;
  return absl::DeadlineExceededError(
      absl::StrCat(error.message(), "; late ranks may wait for this one: ", started.message()));
}

absl::Status MpiBlobExchange::StartRelaying() {
  if (thread_.joinable()) thread_.join();  // An earlier one, which has ended.
  absl::StatusOr<std::thread> thread =
      StartThread("the relays of late ranks", [this] { RelayAbandonedRounds(); });
  if (thread.ok()) {
    thread_ = *std::move(thread);
    return absl::OkStatus();
  }
  const MutexLock lock(mutex_);
  relaying_ = false;  // The next round that misses its deadline tries again.
  return thread.status();
}

void MpiBlobExchange::RelayAbandonedRounds() {
  Backoff backoff;
  while (!stop_ && AdvanceAbandonedRounds()) backoff.Pause();
}

bool MpiBlobExchange::AdvanceAbandonedRounds() {
  const MutexLock lock(mutex_);
  failure_ = Advance();
  std::erase_if(rounds_, [this](const auto& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return entry.second.abandoned && IsFinished(entry.first, entry.second);
  });
  relaying_ = failure_.ok() && std::any_of(rounds_.begin(), rounds_.end(),
                                           [](const auto& entry) { return entry.second.abandoned; });
  return relaying_;
}

}  // namespace weft::internal
