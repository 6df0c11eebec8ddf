#include "src/mesh/mpi_wire.h"

#include <cstring>
#include <utility>

#include "src/mesh/wire_checks.h"
#include "weft/core/status.h"

namespace weft::internal {
namespace {

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
  for (NoteBuffer& buffer : *wire->note_receives_) WEFT_RETURN_IF_ERROR(wire->PostNoteReceive(buffer));
  return wire;
}

MpiWire::MpiWire(std::shared_ptr<MpiSession> session, MpiCommunicator comm, int note_tag)
    : session_(std::move(session)),
      comm_(std::move(comm)),
      ranks_(comm_.size()),
      note_tag_(note_tag),
      note_receives_(std::make_shared<std::array<NoteBuffer, kNoteReceives>>()) {}

MpiWire::~MpiWire() {
  // Nothing is waited for: what is still under way has no receiver any more. See Note [Taking MPI down].
  for (auto& [id, request] : requests_) {
    if (request.awaited_bytes) MPI_Cancel(&request.handle);
    session_->Abandon(request.handle, nullptr);
  }
  for (NoteBuffer& buffer : *note_receives_) {
    if (buffer.handle == MPI_REQUEST_NULL) continue;
    MPI_Cancel(&buffer.handle);
    session_->Abandon(buffer.handle, note_receives_);
  }
  for (const auto& sent : sent_notes_) session_->Abandon(sent->handle, sent);
  comm_.Retire();
}

absl::Status MpiWire::CheckMessage(int peer, int tag, size_t bytes) const {
  WEFT_RETURN_IF_ERROR(CheckEnvelope(peer, ranks_, tag, max_tag()));
  if (bytes <= kMaxMessageBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("message of ", bytes, " bytes: MPI takes at most ",
                                                 kMaxMessageBytes, " at once, so split it"));
}

WireLink::RequestId MpiWire::Remember(Request request) {
  requests_.emplace(next_request_, request);
  return next_request_++;
}

absl::StatusOr<WireLink::RequestId> MpiWire::Send(int peer, int tag, const void* data, size_t bytes) {
  WEFT_RETURN_IF_ERROR(CheckMessage(peer, tag, bytes));
  Request request;
  WEFT_RETURN_IF_ERROR(
      MpiStatus(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, comm_.get(), &request.handle),
                "MPI_Isend"));
  return Remember(request);
}

absl::StatusOr<WireLink::RequestId> MpiWire::Receive(int peer, int tag, void* data, size_t bytes) {
  WEFT_RETURN_IF_ERROR(CheckMessage(peer, tag, bytes));
  Request request;
  request.awaited_bytes = bytes;
  WEFT_RETURN_IF_ERROR(
      MpiStatus(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, comm_.get(), &request.handle),
                "MPI_Irecv"));
  return Remember(request);
}

absl::StatusOr<bool> MpiWire::Test(RequestId request) {
  const auto found = requests_.find(request);
  WEFT_CHECK(found != requests_.end(), "test of a request that is not under way");
  Request& state = found->second;
  int done = 0;
  MPI_Status status;
  const absl::Status tested = MpiStatus(MPI_Test(&state.handle, &done, &status), "MPI_Test");
  if (tested.ok() && done == 0) return false;
  const std::optional<size_t> awaited = state.awaited_bytes;
  requests_.erase(found);
  WEFT_RETURN_IF_ERROR(tested);
  if (!awaited) return true;
  int cancelled = 0;
  WEFT_RETURN_IF_ERROR(MpiStatus(MPI_Test_cancelled(&status, &cancelled), "MPI_Test_cancelled"));
  if (cancelled != 0) return true;
  int bytes = 0;
  WEFT_RETURN_IF_ERROR(MpiStatus(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count"));
  WEFT_RETURN_IF_ERROR(CheckLength(*awaited, static_cast<size_t>(bytes)));
  return true;
}

bool MpiWire::Cancel(RequestId receive) {
  const auto found = requests_.find(receive);
  WEFT_CHECK(found != requests_.end() && found->second.awaited_bytes,
             "cancellation of something that is no receive under way");
  MPI_Cancel(&found->second.handle);
  int done = 0;
  const absl::Status tested =
      MpiStatus(MPI_Test(&found->second.handle, &done, MPI_STATUS_IGNORE), "MPI_Test (cancelled)");
  // What MPI has matched with a message cannot be cancelled: MPI writes to the buffer until it is complete.
  if (tested.ok() && done == 0) return false;
  requests_.erase(found);
  return true;
}

absl::Status MpiWire::SendNote(int peer, std::string_view bytes) {
  WEFT_RETURN_IF_ERROR(CheckNote(peer, ranks_, bytes.size()));
  WEFT_RETURN_IF_ERROR(ReapSentNotes());
  auto note = std::make_shared<NoteBuffer>();
  std::memcpy(note->bytes.data(), bytes.data(), bytes.size());
  WEFT_RETURN_IF_ERROR(MpiStatus(MPI_Isend(note->bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, peer,
                                           note_tag_, comm_.get(), &note->handle),
                                 "MPI_Isend (note)"));
  sent_notes_.push_back(std::move(note));
  return absl::OkStatus();
}

absl::Status MpiWire::ReapSentNotes() {
  for (auto sent = sent_notes_.begin(); sent != sent_notes_.end();) {
    int done = 0;
    WEFT_RETURN_IF_ERROR(MpiStatus(MPI_Test(&(*sent)->handle, &done, MPI_STATUS_IGNORE), "MPI_Test (note)"));
    sent = done != 0 ? sent_notes_.erase(sent) : std::next(sent);
  }
  return absl::OkStatus();
}

absl::Status MpiWire::PostNoteReceive(NoteBuffer& buffer) {
  return MpiStatus(MPI_Irecv(buffer.bytes.data(), static_cast<int>(buffer.bytes.size()), MPI_BYTE,
                             MPI_ANY_SOURCE, note_tag_, comm_.get(), &buffer.handle),
                   "MPI_Irecv (note)");
}

absl::StatusOr<std::optional<WireLink::Note>> MpiWire::PollNote() {
  WEFT_RETURN_IF_ERROR(ReapSentNotes());
  NoteBuffer& buffer = (*note_receives_)[next_note_receive_];
  int done = 0;
  MPI_Status status;
  WEFT_RETURN_IF_ERROR(MpiStatus(MPI_Test(&buffer.handle, &done, &status), "MPI_Test (note)"));
  if (done == 0) return std::optional<Note>();
  int bytes = 0;
  WEFT_RETURN_IF_ERROR(MpiStatus(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count"));
  Note note{status.MPI_SOURCE, std::string(buffer.bytes.data(), static_cast<size_t>(bytes))};
  WEFT_RETURN_IF_ERROR(PostNoteReceive(buffer));
  next_note_receive_ = (next_note_receive_ + 1) % kNoteReceives;
  return std::optional<Note>(std::move(note));
}

}  // namespace weft::internal
