#include "src/mesh/mpi/mpi_tcp_links.h"

#include <string_view>
#include <vector>

#include "src/mesh/tcp/open_tcp_link.h"
#include "weft/core/status.h"
#include "weft/mesh/runtime.h"

namespace weft::internal {

absl::StatusOr<std::unique_ptr<MpiTcpLinks>> MpiTcpLinks::Create(std::shared_ptr<MpiSession> session,
                                                                 MPI_Comm world, int rank,
                                                                 std::string network) {
  WEFT_ASSIGN_OR_RETURN(auto addresses, MpiBlobExchange::Create(std::move(session), world));
  return std::unique_ptr<MpiTcpLinks>(new MpiTcpLinks(std::move(addresses), rank, std::move(network)));
}

absl::StatusOr<std::unique_ptr<WireLink>> MpiTcpLinks::Open(absl::Duration timeout) {
  const SystemRuntime clock;
  const Deadline deadline(clock, timeout);
  const auto gather = [&](std::string_view own) {
    ++rounds_;
    return addresses_->AllGather(own, deadline.Left());
  };
  const std::string skipped = NoTcpLink("this rank has skipped the link");
  while (rounds_ < skip_until_) WEFT_RETURN_IF_ERROR(gather(skipped).status());
  return OpenTcpLink(rank_, network_, gather);
}

}  // namespace weft::internal
