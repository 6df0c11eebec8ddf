#include "src/mesh/mpi/mpi_wire.h"

#include <cstring>
#include <utility>

#include "src/mesh/base/wire_checks.h"
#include "weft/core/status.h"

namespace weft::internal {
namespace {

// A look moves at most some 30 KB of each peer's data, by what Open MPI reads ahead of a socket, and a
// progress thread comes back only after a nap. Of notes one look finds enough.
constexpr int kLooksAtData = 4;

constexpr size_t kMaxMessageBytes = size_t{1} << 30;

absl::StatusOr<int> LargestTag(MPI_Comm comm) {
  int* value = nullptr;
  int found = 0;
  WEFT_RETURN_IF_ERROR(
      MpiStatus(MPI_Comm_get_attr(comm, MPI_TAG_UB, &value, &found), "MPI_Comm_get_attr (TAG_UB)"));
  if (found == 0) return absl::InternalError("MPI does not say which tags it allows (MPI_TAG_UB)");
  return *value;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WireLink>> MpiWire::Open(std::shared_ptr<MpiSession> session, MPI_Comm world) {
  WEFT_ASSIGN_OR_RETURN(MpiCommunicator comm, MpiCommunicator::Duplicate(world));
  WEFT_ASSIGN_OR_RETURN(const int largest_tag, LargestTag(comm.get()));
  std::unique_ptr<MpiWire> wire(new MpiWire(std::move(session), std::move(comm), largest_tag));
  for (size_t i = 0; i < kNoteReceives; ++i) WEFT_RETURN_IF_ERROR(wire->PostNoteReceive(i));
  return wire;
}

MpiWire::MpiWire(std::shared_ptr<MpiSession> session, MpiCommunicator comm, int note_tag)
    : session_(std::move(session)), comm_(std::move(comm)), ranks_(comm_.size()), note_tag_(note_tag) {}

MpiWire::~MpiWire() {
  // Nothing is waited for: what is still under way has no receiver any more. See Note [Taking MPI down].
  const auto abandon = [&](RequestId request, bool receive, std::shared_ptr<const void> memory) {
    MPI_Request handle = requests_.Remove(request);
    if (handle == MPI_REQUEST_NULL) return;
    if (receive) MPI_Cancel(&handle);
    session_->Abandon(handle, std::move(memory));
  };
  for (const auto& [request, awaited] : data_) abandon(request, awaited.has_value(), nullptr);
  for (const MpiRequests::Id request : note_receives_) {
    if (request != 0) abandon(request, /*receive=*/true, note_ring_);
  }
  for (const SentNote& sent : sent_notes_) abandon(sent.request, /*receive=*/false, sent.bytes);
  comm_.Retire();
}

absl::Status MpiWire::CheckMessage(int peer, int tag, size_t bytes) const {
  WEFT_RETURN_IF_ERROR(CheckEnvelope(peer, ranks_, tag, max_tag()));
  if (bytes <= kMaxMessageBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("message of ", bytes, " bytes: MPI takes at most ",
                                                 kMaxMessageBytes, " at once, so split it"));
}

absl::StatusOr<WireLink::RequestId> MpiWire::Send(int peer, int tag, const void* data, size_t bytes) {
  WEFT_RETURN_IF_ERROR(CheckMessage(peer, tag, bytes));
  WEFT_ASSIGN_OR_RETURN(const RequestId request, requests_.Start("MPI_Isend", [&](MPI_Request* handle) {
    return MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, comm_.get(), handle);
  }));
  data_.emplace(request, std::nullopt);
  return request;
}

absl::StatusOr<WireLink::RequestId> MpiWire::Receive(int peer, int tag, void* data, size_t bytes,
                                                     Length length) {
  WEFT_RETURN_IF_ERROR(CheckMessage(peer, tag, bytes));
  WEFT_ASSIGN_OR_RETURN(const RequestId request, requests_.Start("MPI_Irecv", [&](MPI_Request* handle) {
    return MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, comm_.get(), handle);
  }));
  data_.emplace(request, Awaited{bytes, length});
  return request;
}

absl::Status MpiWire::Poll() {
  WEFT_RETURN_IF_ERROR(requests_.Poll(data_.empty() ? 1 : kLooksAtData));
  for (auto sent = sent_notes_.begin(); sent != sent_notes_.end();) {
    const std::optional<MpiRequests::Outcome> outcome = requests_.Take(sent->request);
    sent = outcome ? sent_notes_.erase(sent) : std::next(sent);
    if (outcome) WEFT_RETURN_IF_ERROR(outcome->status);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> MpiWire::Test(RequestId request) {
  const std::optional<MpiRequests::Outcome> outcome = requests_.Take(request);
  if (!outcome) return false;
  const auto found = data_.find(request);
  const std::optional<Awaited> awaited = found->second;
  data_.erase(found);
  WEFT_RETURN_IF_ERROR(outcome->status);
  if (!awaited) return true;
  int cancelled = 0;
  WEFT_RETURN_IF_ERROR(MpiStatus(MPI_Test_cancelled(&outcome->mpi, &cancelled), "MPI_Test_cancelled"));
  if (cancelled != 0) return true;
  int bytes = 0;
  WEFT_RETURN_IF_ERROR(MpiStatus(MPI_Get_count(&outcome->mpi, MPI_BYTE, &bytes), "MPI_Get_count"));
  WEFT_RETURN_IF_ERROR(CheckLength(awaited->bytes, awaited->length, static_cast<size_t>(bytes)));
  return true;
}

bool MpiWire::Cancel(RequestId receive) {
  const auto found = data_.find(receive);
  WEFT_CHECK(found != data_.end() && found->second.has_value(),
             "cancellation of something that is no receive under way");
  // What MPI has matched with a message cannot be cancelled: MPI writes to the buffer until it is complete.
  if (!requests_.Cancel(receive)) return false;
  data_.erase(found);
  return true;
}

absl::Status MpiWire::SendNote(int peer, std::string_view bytes) {
  WEFT_RETURN_IF_ERROR(CheckNote(peer, ranks_, bytes.size()));
  auto note = std::make_shared<NoteBytes>();
  std::memcpy(note->data(), bytes.data(), bytes.size());
  WEFT_ASSIGN_OR_RETURN(const MpiRequests::Id request,
                        requests_.Start("MPI_Isend (note)", [&](MPI_Request* handle) {
                          return MPI_Isend(note->data(), static_cast<int>(bytes.size()), MPI_BYTE, peer,
                                           note_tag_, comm_.get(), handle);
                        }));
  sent_notes_.push_back({request, std::move(note)});
  return absl::OkStatus();
}

absl::Status MpiWire::PostNoteReceive(size_t place) {
  NoteBytes& bytes = (*note_ring_)[place];
  WEFT_ASSIGN_OR_RETURN(note_receives_[place], requests_.Start("MPI_Irecv (note)", [&](MPI_Request* handle) {
    return MPI_Irecv(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, MPI_ANY_SOURCE, note_tag_,
                     comm_.get(), handle);
  }));
  return absl::OkStatus();
}

absl::StatusOr<std::optional<WireLink::Note>> MpiWire::PollNote() {
  MpiRequests::Id& receive = note_receives_[next_note_receive_];
  if (receive == 0) WEFT_RETURN_IF_ERROR(PostNoteReceive(next_note_receive_));
  const std::optional<MpiRequests::Outcome> outcome = requests_.Take(receive);
  if (!outcome) return std::optional<Note>();
  receive = 0;
  WEFT_RETURN_IF_ERROR(outcome->status);
  int bytes = 0;
  WEFT_RETURN_IF_ERROR(MpiStatus(MPI_Get_count(&outcome->mpi, MPI_BYTE, &bytes), "MPI_Get_count"));
  const NoteBytes& text = (*note_ring_)[next_note_receive_];
  Note note{outcome->mpi.MPI_SOURCE, std::string(text.data(), static_cast<size_t>(bytes))};
  WEFT_RETURN_IF_ERROR(PostNoteReceive(next_note_receive_));
  next_note_receive_ = (next_note_receive_ + 1) % kNoteReceives;
  return std::optional<Note>(std::move(note));
}

}  // namespace weft::internal
