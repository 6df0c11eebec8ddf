#include "src/mesh/mpi/mpi_session.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "weft/core/exit_codes.h"
#include "weft/core/status.h"
#include "weft/mesh/launch_environment.h"

namespace weft::internal {
namespace {

[[noreturn]] void EndProcess(const std::string& message) {
  const std::optional<int> rank = ReadLaunchEnvironment().rank;
  const std::string name = rank ? absl::StrCat("rank ", *rank, ": ") : "";
  std::fprintf(stderr, "weft: %s%s\n", name.c_str(), message.c_str());
  std::_Exit(kExitRankMissing);  // MPI_Abort may block.
}

}  // namespace

absl::Status MpiStatus(int code, std::string_view call) {
  if (code == MPI_SUCCESS) return absl::OkStatus();
  std::array<char, MPI_MAX_ERROR_STRING> text = {};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return absl::InternalError(
      absl::StrCat(ToAbsl(call), ": ", absl::string_view(text.data(), static_cast<size_t>(length))));
}

MpiSession::MpiSession(const MpiBootstrapOptions& options) : options_(options) {
  if (!options.watchdog) return;
  absl::StatusOr<std::unique_ptr<CallGuard>> guard = CallGuard::Start(EndProcess);
  watchdog_status_ = guard.status();
  if (guard.ok()) guard_ = *std::move(guard);
}

absl::StatusOr<std::shared_ptr<MpiSession>> MpiSession::Open(const MpiBootstrapOptions& options) {
  std::shared_ptr<MpiSession> session(new MpiSession(options));
  WEFT_RETURN_IF_ERROR(session->Initialize());
  return session;
}

absl::Status MpiSession::Initialize() {
  // MPI counts as initialized after its end, too. Most other calls then end the process.
  int finalized = 0;
  WEFT_RETURN_IF_ERROR(MpiStatus(MPI_Finalized(&finalized), "MPI_Finalized"));
  if (finalized != 0) {
    return absl::FailedPreconditionError(
        "MPI was finalized, by the end of an earlier bootstrap or by MPI_Finalize, and cannot start again in "
        "this process: keep one bootstrap until the process ends, or initialize MPI yourself");
  }
  int initialized = 0;
  WEFT_RETURN_IF_ERROR(MpiStatus(MPI_Initialized(&initialized), "MPI_Initialized"));
  int level = MPI_THREAD_SINGLE;
  if (initialized != 0) {
    WEFT_RETURN_IF_ERROR(MpiStatus(MPI_Query_thread(&level), "MPI_Query_thread"));
  } else {
    const CallGuard::Scope call = Guard("MPI_Init");
    WEFT_RETURN_IF_ERROR(
        MpiStatus(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread"));
    owner_ = true;
    // MPICH reports errors in a test of several requests to the handlers of these communicators. The default
    // handler ends the program.
    for (const MPI_Comm comm : {MPI_COMM_WORLD, MPI_COMM_SELF})
      WEFT_RETURN_IF_ERROR(
          MpiStatus(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler"));
  }
  if (level < MPI_THREAD_MULTIPLE) {
    return absl::FailedPreconditionError(
        "MPI does not provide MPI_THREAD_MULTIPLE, which the progress thread needs: initialize MPI with that "
        "level, or use an MPI library that supports it");
  }
  return absl::OkStatus();
}

MpiSession::~MpiSession() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (!owner_ || finalized != 0) return;
  const CallGuard::Scope call = Guard("MPI_Finalize");
  Report(MpiStatus(MPI_Finalize(), "MPI_Finalize"));
}

CallGuard::Scope MpiSession::Guard(std::string_view call) {
  if (guard_ == nullptr) return CallGuard::Scope(nullptr);
  return starting_ ? guard_->Enter(absl::StrCat("start-up: ", ToAbsl(call)), options_.startup_timeout,
                                   "see its messages, or set a longer WEFT_STARTUP_TIMEOUT_S")
                   : guard_->Enter(std::string(call), options_.timeout,
                                   "see its messages, or set a longer WEFT_TIMEOUT_S");
}

void MpiSession::EndIfPeersAreMissing() const {
  if (guard_ == nullptr || peers_missing_.ok()) return;
  EndProcess(absl::StrCat("MPI cannot be finalized: ", peers_missing_.message()));
}

void MpiSession::Abandon(MPI_Request& request, std::shared_ptr<const void> memory) {
  Report(MpiStatus(MPI_Request_free(&request), "MPI_Request_free"));
  if (memory != nullptr) abandoned_.push_back(std::move(memory));
}

absl::StatusOr<MpiCommunicator> MpiCommunicator::Duplicate(MpiSession& session, MPI_Comm parent) {
  const CallGuard::Scope call = session.Guard("MPI_Comm_dup");
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

absl::StatusOr<MpiCommunicator> MpiCommunicator::SplitByNode(MpiSession& session, MPI_Comm parent) {
  const CallGuard::Scope call = session.Guard("MPI_Comm_split_type");
  MPI_Comm comm = MPI_COMM_NULL;
  WEFT_RETURN_IF_ERROR(
      MpiStatus(MPI_Comm_split_type(parent, MPI_COMM_TYPE_SHARED, /*key=*/0, MPI_INFO_NULL, &comm),
                "MPI_Comm_split_type"));
  return Adopt(comm);
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
