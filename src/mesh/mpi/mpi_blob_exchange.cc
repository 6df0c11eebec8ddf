#include "src/mesh/mpi/mpi_blob_exchange.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "src/mesh/base/deadline.h"
#include "weft/core/backoff.h"
#include "weft/core/status.h"

namespace weft::internal {
namespace {

constexpr int kTag = 0;
constexpr size_t kMaxBlobBytes = size_t{1} << 30;

}  // namespace

absl::StatusOr<std::unique_ptr<MpiBlobExchange>> MpiBlobExchange::Create(std::shared_ptr<MpiSession> session,
                                                                         MPI_Comm world) {
  WEFT_ASSIGN_OR_RETURN(MpiCommunicator comm, MpiCommunicator::Duplicate(*session, world));
  return std::unique_ptr<MpiBlobExchange>(new MpiBlobExchange(std::move(session), std::move(comm)));
}

MpiBlobExchange::MpiBlobExchange(std::shared_ptr<MpiSession> session, MpiCommunicator comm)
    : session_(std::move(session)), comm_(std::move(comm)), rank_(comm_.rank()), peers_(comm_.size()) {}

MpiBlobExchange::~MpiBlobExchange() {
  // Only rounds that missed their deadline leave requests behind. See Note [MPI teardown].
  for (Peer& peer : peers_) {
    for (Transfer& sent : peer.outgoing) session_->Abandon(sent.request, sent.message);
    if (peer.incoming.request != MPI_REQUEST_NULL)
      session_->Abandon(peer.incoming.request, peer.incoming.message);
  }
  comm_.Retire();  // Messages of an abandoned round may still arrive.
}

absl::StatusOr<std::vector<std::string>> MpiBlobExchange::AllGather(std::string_view blob,
                                                                    absl::Duration timeout) {
  ++round_;  // A rejected blob uses its round, too, so that later rounds match.
  if (blob.size() > kMaxBlobBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot gather a blob of ", blob.size(), " bytes: the maximum is ", kMaxBlobBytes));
  }
  auto message = std::make_shared<std::string>(sizeof(round_), '\0');
  std::memcpy(message->data(), &round_, sizeof(round_));
  message->append(blob);
  for (int peer = 0; peer < comm_.size(); ++peer) {
    if (peer == rank_) continue;
    peers_[peer].arrived = false;
    WEFT_RETURN_IF_ERROR(Send(peer, message));
  }
  const absl::Status advanced = AdvanceAllUntil(timeout);
  session_->SetPeersMissing(absl::IsDeadlineExceeded(advanced) ? advanced : absl::OkStatus());
  WEFT_RETURN_IF_ERROR(advanced);

  std::vector<std::string> blobs;
  for (int rank = 0; rank < comm_.size(); ++rank) {
    const std::string& from = rank == rank_ ? *message : *peers_[rank].incoming.message;
    blobs.push_back(from.substr(sizeof(round_)));
  }
  return blobs;
}

absl::Status MpiBlobExchange::Send(int peer, const std::shared_ptr<std::string>& message) {
  Transfer sent{message};
  WEFT_RETURN_IF_ERROR(MpiStatus(MPI_Isend(message->data(), static_cast<int>(message->size()), MPI_BYTE, peer,
                                           kTag, comm_.get(), &sent.request),
                                 "MPI_Isend"));
  peers_[peer].outgoing.push_back(std::move(sent));
  return absl::OkStatus();
}

absl::Status MpiBlobExchange::AdvanceAllUntil(absl::Duration timeout) {
  const auto deadline = DeadlineAfter(timeout);
  Backoff backoff;
  for (;;) {
    std::vector<int> missing;
    for (int peer = 0; peer < comm_.size(); ++peer) {
      if (peer == rank_) continue;
      WEFT_RETURN_IF_ERROR(Advance(peer));
      if (!IsFinished(peer)) missing.push_back(peer);
    }
    if (missing.empty()) return absl::OkStatus();
    if (std::chrono::steady_clock::now() >= deadline) {
      return MissingRanksError("all-gather of blobs", missing, timeout);
    }
    backoff.Pause();
  }
}

// MPI sends a large message only while the sender calls MPI. A rank therefore also waits for its own sends.
bool MpiBlobExchange::IsFinished(int peer) const {
  return peers_[peer].arrived && peers_[peer].outgoing.empty();
}

absl::Status MpiBlobExchange::Advance(int peer) {
  Peer& state = peers_[peer];
  while (!state.outgoing.empty()) {
    int done = 0;
    WEFT_RETURN_IF_ERROR(
        MpiStatus(MPI_Test(&state.outgoing.front().request, &done, MPI_STATUS_IGNORE), "MPI_Test (send)"));
    if (done == 0) break;
    state.outgoing.erase(state.outgoing.begin());
  }
  if (state.arrived) return absl::OkStatus();
  if (state.incoming.request == MPI_REQUEST_NULL) WEFT_RETURN_IF_ERROR(StartReceive(peer));
  return FinishReceive(state);
}

absl::Status MpiBlobExchange::StartReceive(int peer) {
  int found = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  WEFT_RETURN_IF_ERROR(
      MpiStatus(MPI_Improbe(peer, kTag, comm_.get(), &found, &message, &status), "MPI_Improbe"));
  if (found == 0) return absl::OkStatus();
  int bytes = 0;
  WEFT_RETURN_IF_ERROR(MpiStatus(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count"));
  Transfer& incoming = peers_[peer].incoming;
  incoming.message = std::make_shared<std::string>(static_cast<size_t>(bytes), '\0');
  return MpiStatus(MPI_Imrecv(incoming.message->data(), bytes, MPI_BYTE, &message, &incoming.request),
                   "MPI_Imrecv");
}

absl::Status MpiBlobExchange::FinishReceive(Peer& from) {
  if (from.incoming.request == MPI_REQUEST_NULL) return absl::OkStatus();
  int done = 0;
  WEFT_RETURN_IF_ERROR(
      MpiStatus(MPI_Test(&from.incoming.request, &done, MPI_STATUS_IGNORE), "MPI_Test (receive)"));
  if (done == 0) return absl::OkStatus();
  RoundNumber round = 0;
  WEFT_CHECK(from.incoming.message->size() >= sizeof(round), "a blob message without a round number");
  std::memcpy(&round, from.incoming.message->data(), sizeof(round));
  WEFT_CHECK(round <= round_, "a peer skipped a round of the blob exchange");
  from.arrived = round == round_;
  return absl::OkStatus();
}

}  // namespace weft::internal
