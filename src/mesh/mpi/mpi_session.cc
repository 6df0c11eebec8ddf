#include "src/mesh/mpi/mpi_session.h"

#include <array>

#include "weft/core/status.h"

namespace weft::internal {

absl::Status MpiStatus(int code, std::string_view call) {
  if (code == MPI_SUCCESS) return absl::OkStatus();
  std::array<char, MPI_MAX_ERROR_STRING> text = {};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return absl::InternalError(
      absl::StrCat(ToAbsl(call), ": ", absl::string_view(text.data(), static_cast<size_t>(length))));
}

absl::StatusOr<std::shared_ptr<MpiSession>> MpiSession::Open() {
  int initialized = 0;
  WEFT_RETURN_IF_ERROR(MpiStatus(MPI_Initialized(&initialized), "MPI_Initialized"));
  int level = MPI_THREAD_SINGLE;
  if (initialized != 0) {
    WEFT_RETURN_IF_ERROR(MpiStatus(MPI_Query_thread(&level), "MPI_Query_thread"));
  } else {
    WEFT_RETURN_IF_ERROR(
        MpiStatus(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread"));
  }
  std::shared_ptr<MpiSession> session(new MpiSession(initialized == 0));
  if (level < MPI_THREAD_MULTIPLE) {
    return absl::FailedPreconditionError(
        "MPI does not provide MPI_THREAD_MULTIPLE, which the progress thread needs: initialize MPI with that "
        "level, or use an MPI library that supports it");
  }
  return session;
}

MpiSession::~MpiSession() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (owner_ && finalized == 0) Report(MpiStatus(MPI_Finalize(), "MPI_Finalize"));
}

void MpiSession::Abandon(MPI_Request& request, std::shared_ptr<const void> memory) {
  Report(MpiStatus(MPI_Request_free(&request), "MPI_Request_free"));
  if (memory != nullptr) abandoned_.push_back(std::move(memory));
}

absl::StatusOr<MpiCommunicator> MpiCommunicator::Duplicate(MPI_Comm parent) {
  MPI_Comm comm = MPI_COMM_NULL;
  WEFT_RETURN_IF_ERROR(MpiStatus(MPI_Comm_dup(parent, &comm), "MPI_Comm_dup"));
  return Adopt(comm);
}

absl::StatusOr<MpiCommunicator> MpiCommunicator::Adopt(MPI_Comm comm) {
  MpiCommunicator owned(comm);
  WEFT_RETURN_IF_ERROR(
      MpiStatus(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler"));
  return owned;
}

absl::StatusOr<MpiCommunicator> MpiCommunicator::SplitByNode(MPI_Comm parent) {
  MPI_Comm comm = MPI_COMM_NULL;
  WEFT_RETURN_IF_ERROR(
      MpiStatus(MPI_Comm_split_type(parent, MPI_COMM_TYPE_SHARED, /*key=*/0, MPI_INFO_NULL, &comm),
                "MPI_Comm_split_type"));
  MpiCommunicator owned(comm);
  WEFT_RETURN_IF_ERROR(
      MpiStatus(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler"));
  return owned;
}

MpiCommunicator::~MpiCommunicator() {
  if (comm_ != MPI_COMM_NULL) Report(MpiStatus(MPI_Comm_free(&comm_), "MPI_Comm_free"));
}

int MpiCommunicator::rank() const {
  int rank = 0;
  MPI_Comm_rank(comm_, &rank);
  return rank;
}

int MpiCommunicator::size() const {
  int size = 0;
  MPI_Comm_size(comm_, &size);
  return size;
}

}  // namespace weft::internal
