#include "src/mesh/mpi/mpi_link.h"

#include <utility>

#include "src/mesh/base/link_checks.h"
#include "weft/core/status.h"

namespace weft::internal {
namespace {

// One test moves at most about 30 KB of each peer's data, the amount that Open MPI reads from a socket at
// once. The progress thread sleeps between polls, so a poll with data in flight tests several times. For
// control messages alone, one test suffices.
constexpr int kDataTests = 4;

constexpr size_t kMaxMessageBytes = size_t{1} << 30;

absl::StatusOr<int> LargestTag(MPI_Comm comm) {
  int* value = nullptr;
  int found = 0;
  WEFT_RETURN_IF_ERROR(
      MpiStatus(MPI_Comm_get_attr(comm, MPI_TAG_UB, &value, &found), "MPI_Comm_get_attr (TAG_UB)"));
  if (found == 0) return absl::InternalError("MPI does not report its largest tag (MPI_TAG_UB)");
  return *value;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WireLink>> MpiLink::Open(std::shared_ptr<MpiSession> session,
                                                        MpiCommunicator comm) {
  WEFT_ASSIGN_OR_RETURN(const int largest_tag, LargestTag(comm.get()));
  std::unique_ptr<MpiLink> link(new MpiLink(std::move(session), std::move(comm), largest_tag));
  for (size_t i = 0; i < kControlReceives; ++i) WEFT_RETURN_IF_ERROR(link->PostControlReceive(i));
  return link;
}

MpiLink::MpiLink(std::shared_ptr<MpiSession> session, MpiCommunicator comm, int control_tag)
    : session_(std::move(session)), comm_(std::move(comm)), ranks_(comm_.size()), control_tag_(control_tag) {}

MpiLink::~MpiLink() {
  // Abandon the requests in flight without waiting: see Note [MPI teardown]. MPI may still access buffers of
  // data messages: see WireLink.
  const auto abandon = [&](RequestId request, bool receive, std::shared_ptr<const void> memory) {
    MPI_Request handle = requests_.Remove(request);
    if (handle == MPI_REQUEST_NULL) return;
    if (receive) MPI_Cancel(&handle);
    session_->Abandon(handle, std::move(memory));
  };
  for (const auto& [request, expected] : data_) abandon(request, expected.has_value(), nullptr);
  for (const MpiRequests::Id request : control_receives_) {
    if (request != 0) abandon(request, /*receive=*/true, control_ring_);
  }
  for (const SentControlMessage& sent : sent_control_messages_)
    abandon(sent.request, /*receive=*/false, sent.bytes);
  comm_.Retire();
}

absl::Status MpiLink::CheckMessage(int peer, int tag, size_t bytes) const {
  WEFT_RETURN_IF_ERROR(CheckEnvelope(peer, ranks_, tag, max_tag()));
  if (bytes <= kMaxMessageBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("message of ", bytes, " bytes: the maximum over MPI is ", kMaxMessageBytes, "; split it"));
}

absl::StatusOr<WireLink::RequestId> MpiLink::Send(int peer, int tag, const void* data, size_t bytes) {
  WEFT_RETURN_IF_ERROR(CheckMessage(peer, tag, bytes));
  WEFT_ASSIGN_OR_RETURN(const RequestId request, requests_.Start("MPI_Isend", [&](MPI_Request* handle) {
    return MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, comm_.get(), handle);
  }));
  data_.emplace(request, std::nullopt);
  return request;
}

absl::StatusOr<WireLink::RequestId> MpiLink::Receive(int peer, int tag, void* data, size_t bytes,
                                                     Length length) {
  WEFT_RETURN_IF_ERROR(CheckMessage(peer, tag, bytes));
  WEFT_ASSIGN_OR_RETURN(const RequestId request, requests_.Start("MPI_Irecv", [&](MPI_Request* handle) {
    return MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, comm_.get(), handle);
  }));
  data_.emplace(request, ExpectedMessage{bytes, length});
  return request;
}

absl::Status MpiLink::Poll() {
  WEFT_RETURN_IF_ERROR(requests_.Poll(data_.empty() ? 1 : kDataTests));
  for (auto sent = sent_control_messages_.begin(); sent != sent_control_messages_.end();) {
    const std::optional<MpiRequests::Outcome> outcome = requests_.Take(sent->request);
    sent = outcome ? sent_control_messages_.erase(sent) : std::next(sent);
    if (outcome) WEFT_RETURN_IF_ERROR(outcome->status);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> MpiLink::Test(RequestId request) {
  const std::optional<MpiRequests::Outcome> outcome = requests_.Take(request);
  if (!outcome) return false;
  const auto found = data_.find(request);
  const std::optional<ExpectedMessage> expected = found->second;
  data_.erase(found);
  WEFT_RETURN_IF_ERROR(outcome->status);
  if (!expected) return true;
  int canceled = 0;
  WEFT_RETURN_IF_ERROR(MpiStatus(MPI_Test_cancelled(&outcome->mpi, &canceled), "MPI_Test_cancelled"));
  if (canceled != 0) return true;
  int bytes = 0;
  WEFT_RETURN_IF_ERROR(MpiStatus(MPI_Get_count(&outcome->mpi, MPI_BYTE, &bytes), "MPI_Get_count"));
  WEFT_RETURN_IF_ERROR(CheckLength(expected->bytes, expected->length, static_cast<size_t>(bytes)));
  return true;
}

bool MpiLink::Cancel(RequestId request) {
  const auto found = data_.find(request);
  WEFT_CHECK(found != data_.end(), "Cancel of a request that is not in flight");
  const bool is_send = !found->second.has_value();
  // A receive that has matched a message cannot be canceled: MPI writes to its buffer until it is complete.
  const auto outcome = is_send ? requests_.Take(request) : requests_.Cancel(request);
  if (!outcome) return false;
  data_.erase(found);
  return true;
}

absl::Status MpiLink::SendControlMessage(int peer, std::string_view bytes) {
  WEFT_RETURN_IF_ERROR(CheckControlMessage(peer, ranks_, bytes.size()));
  auto message = std::make_shared<const std::string>(bytes);
  WEFT_ASSIGN_OR_RETURN(const MpiRequests::Id request,
                        requests_.Start("MPI_Isend (control message)", [&](MPI_Request* handle) {
                          return MPI_Isend(message->data(), static_cast<int>(bytes.size()), MPI_BYTE, peer,
                                           control_tag_, comm_.get(), handle);
                        }));
  sent_control_messages_.push_back({request, std::move(message)});
  return absl::OkStatus();
}

absl::Status MpiLink::PostControlReceive(size_t slot) {
  ControlBuffer& bytes = (*control_ring_)[slot];
  WEFT_ASSIGN_OR_RETURN(control_receives_[slot],
                        requests_.Start("MPI_Irecv (control message)", [&](MPI_Request* handle) {
                          return MPI_Irecv(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE,
                                           MPI_ANY_SOURCE, control_tag_, comm_.get(), handle);
                        }));
  return absl::OkStatus();
}

absl::StatusOr<std::optional<WireLink::ControlMessage>> MpiLink::PollControlMessage() {
  MpiRequests::Id& receive = control_receives_[next_control_receive_];
  if (receive == 0) WEFT_RETURN_IF_ERROR(PostControlReceive(next_control_receive_));
  const std::optional<MpiRequests::Outcome> outcome = requests_.Take(receive);
  if (!outcome) return std::optional<ControlMessage>();
  receive = 0;
  WEFT_RETURN_IF_ERROR(outcome->status);
  int bytes = 0;
  WEFT_RETURN_IF_ERROR(MpiStatus(MPI_Get_count(&outcome->mpi, MPI_BYTE, &bytes), "MPI_Get_count"));
  const ControlBuffer& text = (*control_ring_)[next_control_receive_];
  ControlMessage message{outcome->mpi.MPI_SOURCE, std::string(text.data(), static_cast<size_t>(bytes))};
  WEFT_RETURN_IF_ERROR(PostControlReceive(next_control_receive_));
  next_control_receive_ = (next_control_receive_ + 1) % kControlReceives;
  return std::optional<ControlMessage>(std::move(message));
}

}  // namespace weft::internal
