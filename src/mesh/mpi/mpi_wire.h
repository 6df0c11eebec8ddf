// Messages between ranks over MPI point-to-point calls, on a communicator of the link's own.
//
// Notes are messages on a reserved tag, received from anybody by a ring of receives that are posted in
// advance; as MPI matches receives in the order of posting, taking them in ring order keeps every sender's
// order.
#pragma once

#include <array>
#include <cstddef>
#include <list>
#include <memory>
#include <optional>
#include <string_view>

#include <absl/container/flat_hash_map.h>

#include "src/mesh/mpi/mpi_requests.h"
#include "src/mesh/mpi/mpi_session.h"
#include "weft/mesh/wire_link.h"

namespace weft::internal {

class MpiWire : public WireLink {
 public:
  // Collective: all ranks of `world`.
  static absl::StatusOr<std::unique_ptr<WireLink>> Open(std::shared_ptr<MpiSession> session, MPI_Comm world);
  ~MpiWire() override;

  // kInvalidArgument above 1 GiB: MPI counts bytes in an int.
  absl::StatusOr<RequestId> Send(int peer, int tag, const void* data, size_t bytes) override;
  absl::StatusOr<RequestId> Receive(int peer, int tag, void* data, size_t bytes, Length length) override;
  absl::Status Poll() override;
  absl::StatusOr<bool> Test(RequestId request) override;
  bool Cancel(RequestId receive) override;
  absl::Status SendNote(int peer, std::string_view bytes) override;
  bool HasUnsentNotes() const override { return !sent_notes_.empty(); }
  absl::StatusOr<std::optional<Note>> PollNote() override;
  int max_tag() const override { return note_tag_ - 1; }

 private:
  static constexpr size_t kNoteReceives = 16;
  using NoteBytes = std::array<char, kMaxNoteBytes>;
  using NoteRing = std::array<NoteBytes, kNoteReceives>;
  struct SentNote {
    MpiRequests::Id request;
    std::shared_ptr<NoteBytes> bytes;
  };

  MpiWire(std::shared_ptr<MpiSession> session, MpiCommunicator comm, int note_tag);
  absl::Status PostNoteReceive(size_t place);
  absl::Status CheckMessage(int peer, int tag, size_t bytes) const;

  std::shared_ptr<MpiSession> session_;
  MpiCommunicator comm_;
  const int ranks_;
  const int note_tag_;
  MpiRequests requests_;
  struct Awaited {
    size_t bytes;
    Length length;
  };
  // Of the data requests: what a receive awaits.
  absl::flat_hash_map<RequestId, std::optional<Awaited>> data_;
  std::shared_ptr<NoteRing> note_ring_ = std::make_shared<NoteRing>();
  std::array<MpiRequests::Id, kNoteReceives> note_receives_ = {};
  size_t next_note_receive_ = 0;
  std::list<SentNote> sent_notes_;
};

}  // namespace weft::internal
