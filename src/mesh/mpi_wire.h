// Messages between ranks over MPI point-to-point calls, on a communicator of the link's own.
//
// Data requests are MPI requests. Notes are messages on a reserved tag, received from anybody by a ring of
// receives that are posted in advance; as MPI matches receives in the order of posting, taking them in ring
// order keeps every sender's order.
#pragma once

#include <array>
#include <cstddef>
#include <list>
#include <memory>
#include <optional>
#include <string_view>

#include <absl/container/flat_hash_map.h>

#include "src/mesh/mpi_session.h"
#include "weft/mesh/wire_link.h"

namespace weft::internal {

class MpiWire : public WireLink {
 public:
  // Collective: all ranks of `world`.
  static absl::StatusOr<std::unique_ptr<WireLink>> Open(std::shared_ptr<MpiSession> session, MPI_Comm world);
  ~MpiWire() override;

  // kInvalidArgument above 1 GiB: MPI counts bytes in an int.
  absl::StatusOr<RequestId> Send(int peer, int tag, const void* data, size_t bytes) override;
  absl::StatusOr<RequestId> Receive(int peer, int tag, void* data, size_t bytes) override;
  absl::StatusOr<bool> Test(RequestId request) override;
  bool Cancel(RequestId receive) override;
  absl::Status SendNote(int peer, std::string_view bytes) override;
  absl::StatusOr<std::optional<Note>> PollNote() override;
  int max_tag() const override { return note_tag_ - 1; }

 private:
  static constexpr size_t kNoteReceives = 16;
  struct Request {
    MPI_Request handle = MPI_REQUEST_NULL;
    std::optional<size_t> awaited_bytes;  // Of a receive.
  };
  struct NoteBuffer {
    std::array<char, kMaxNoteBytes> bytes;
    MPI_Request handle = MPI_REQUEST_NULL;
  };

  MpiWire(std::shared_ptr<MpiSession> session, MpiCommunicator comm, int note_tag);
  RequestId Remember(Request request);
  absl::Status PostNoteReceive(NoteBuffer& buffer);
  absl::Status ReapSentNotes();
  absl::Status CheckMessage(int peer, int tag, size_t bytes) const;

  std::shared_ptr<MpiSession> session_;
  MpiCommunicator comm_;
  const int ranks_;
  const int note_tag_;
  RequestId next_request_ = 1;
  absl::flat_hash_map<RequestId, Request> requests_;
  std::shared_ptr<std::array<NoteBuffer, kNoteReceives>> note_receives_;
  size_t next_note_receive_ = 0;
  std::list<std::shared_ptr<NoteBuffer>> sent_notes_;
};

}  // namespace weft::internal
