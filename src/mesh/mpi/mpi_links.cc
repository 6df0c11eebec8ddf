#include "src/mesh/mpi/mpi_links.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <absl/strings/str_cat.h>

#include "src/mesh/mpi/mpi_blob_exchange.h"
#include "src/mesh/mpi/mpi_duplicates.h"
#include "src/mesh/mpi/mpi_library.h"
#include "src/mesh/mpi/mpi_link.h"
#include "src/mesh/tcp/open_tcp_link.h"
#include "weft/core/status.h"
#include "weft/mesh/runtime.h"

namespace weft::internal {
namespace {

// Each link has a communicator of its own.
class LinksOverMpi final : public MpiLinks {
 public:
  LinksOverMpi(std::shared_ptr<MpiSession> session, MPI_Comm world, std::string reason)
      : session_(std::move(session)), comms_(world), reason_(std::move(reason)) {}

  absl::StatusOr<std::unique_ptr<WireLink>> Open(absl::Duration timeout) override {
    absl::StatusOr<MpiCommunicator> comm = comms_.Open(timeout);
    session_->SetPeersMissing(absl::IsDeadlineExceeded(comm.status()) ? comm.status() : absl::OkStatus());
    WEFT_RETURN_IF_ERROR(comm.status());
    return MpiLink::Open(session_, *std::move(comm));
  }
  int64_t count() const override { return comms_.count(); }
  void Skip(int64_t count) override { comms_.Skip(count); }
  std::string TransportName() const override {
    return absl::StrCat("MPI (", MpiLibraryName(), ")", reason_.empty() ? "" : ", because of ", reason_);
  }

 private:
  const std::shared_ptr<MpiSession> session_;
  MpiDuplicates comms_;
  const std::string reason_;
};

class LinksOverTcp final : public MpiLinks {
 public:
  LinksOverTcp(std::unique_ptr<MpiBlobExchange> addresses, int rank, std::string network)
      : addresses_(std::move(addresses)), rank_(rank), network_(std::move(network)) {}

  absl::StatusOr<std::unique_ptr<WireLink>> Open(absl::Duration timeout) override {
    const SystemRuntime clock;
    const Deadline deadline(clock, timeout);
    const bool skips = rounds_ < skip_until_;
    const std::string skipped = NoTcpLink("this rank has skipped the link");
    while (rounds_ < skip_until_) {
      ++rounds_;
      WEFT_RETURN_IF_ERROR(addresses_->AllGather(skipped, deadline.Left()).status());
    }
    return OpenTcpLink(rank_, network_, [&](std::string_view own) {
      ++rounds_;
      return addresses_->AllGather(own, skips ? deadline.Left() : timeout);
    });
  }
  int64_t count() const override { return std::max(rounds_, skip_until_); }
  void Skip(int64_t count) override { skip_until_ = std::max(skip_until_, count); }
  std::string TransportName() const override { return "TCP sockets"; }

 private:
  const std::unique_ptr<MpiBlobExchange> addresses_;  // One round for each link.
  const int rank_;
  const std::string network_;
  int64_t rounds_ = 0;
  int64_t skip_until_ = 0;
};

}  // namespace

std::unique_ptr<MpiLinks> MakeLinksOverMpi(std::shared_ptr<MpiSession> session, const MpiCommunicator& world,
                                           std::string reason) {
  return std::make_unique<LinksOverMpi>(std::move(session), world.get(), std::move(reason));
}

absl::StatusOr<std::unique_ptr<MpiLinks>> MakeLinksOverTcp(std::shared_ptr<MpiSession> session,
                                                           const MpiCommunicator& world,
                                                           std::string network) {
  WEFT_ASSIGN_OR_RETURN(auto addresses, MpiBlobExchange::Create(std::move(session), world.get(),
                                                                "opening a link between nodes"));
  return std::make_unique<LinksOverTcp>(std::move(addresses), world.rank(), std::move(network));
}

}  // namespace weft::internal
