// WireLink over MPI point-to-point calls, on its own communicator.
//
// Control messages use a reserved tag, and arrive in a ring of receives that are posted in advance from
// MPI_ANY_SOURCE. MPI matches receives in the order of posting. Reading the ring in that order therefore
// keeps the order of each sender's messages.
#pragma once

#include <array>
#include <cstddef>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <absl/container/flat_hash_map.h>

#include "src/mesh/mpi/mpi_requests.h"
#include "src/mesh/mpi/mpi_session.h"
#include "weft/mesh/wire_link.h"

namespace weft::internal {

class MpiLink : public WireLink {
 public:
  // `comm` belongs to the link alone.
  static absl::StatusOr<std::unique_ptr<WireLink>> Open(std::shared_ptr<MpiSession> session,
                                                        MpiCommunicator comm);
  ~MpiLink() override;

  // Errors: also kInvalidArgument above 1 GiB, because MPI counts bytes in an int.
  absl::StatusOr<RequestId> Send(int peer, int tag, const void* data, size_t bytes) override;
  absl::StatusOr<RequestId> Receive(int peer, int tag, void* data, size_t bytes, Length length) override;
  absl::Status Poll() override;
  absl::StatusOr<bool> Test(RequestId request) override;
  bool Cancel(RequestId request) override;
  absl::Status SendControlMessage(int peer, std::string_view bytes) override;
  bool HasUnsentControlMessages() const override { return !sent_control_messages_.empty(); }
  absl::StatusOr<std::optional<ControlMessage>> PollControlMessage() override;
  int max_tag() const override { return control_tag_ - 1; }
  bool has_rendezvous() const override { return true; }

 private:
  static constexpr size_t kControlReceives = 16;
  using ControlBuffer = std::array<char, kMaxControlMessageBytes>;
  using ControlRing = std::array<ControlBuffer, kControlReceives>;
  struct SentControlMessage {
    MpiRequests::Id request;
    std::shared_ptr<const std::string> bytes;
  };

  MpiLink(std::shared_ptr<MpiSession> session, MpiCommunicator comm, int control_tag);
  absl::Status PostControlReceive(size_t slot);
  absl::Status CheckMessage(int peer, int tag, size_t bytes) const;

  std::shared_ptr<MpiSession> session_;
  MpiCommunicator comm_;
  const int ranks_;
  const int control_tag_;
  MpiRequests requests_;
  struct ExpectedMessage {
    size_t bytes;
    Length length;
  };
  // Data requests in flight. Sends have nullopt.
  absl::flat_hash_map<RequestId, std::optional<ExpectedMessage>> data_;
  std::shared_ptr<ControlRing> control_ring_ = std::make_shared<ControlRing>();
  std::array<MpiRequests::Id, kControlReceives> control_receives_ = {};
  size_t next_control_receive_ = 0;
  std::list<SentControlMessage> sent_control_messages_;
};

}  // namespace weft::internal
