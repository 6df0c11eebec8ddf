#include "src/mesh/tcp/open_tcp_link.h"

#include <cstddef>
#include <sys/resource.h>
#include <utility>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include "src/mesh/tcp/tcp_endpoint.h"
#include "src/mesh/tcp/tcp_link.h"
#include "weft/core/status.h"
#include "weft/mesh/runtime.h"

namespace weft::internal {
namespace {

// A text is the endpoint of a rank's link, or the error that left it without one, with a mark in front.
constexpr char kEndpoint = '+';
constexpr char kError = '-';

absl::StatusOr<TcpEndpoint> DecodeText(std::string_view text) {
  if (text.starts_with(kEndpoint)) return TcpEndpoint::Decode(text.substr(1));
  if (text.starts_with(kError)) return absl::FailedPreconditionError(ToAbsl(text.substr(1)));
  return absl::InternalError(
      absl::StrCat("'", ToAbsl(text), "' is no address of a link", kSameVersionRemedy));
}

absl::StatusOr<std::vector<TcpEndpoint>> DecodeEndpoints(const std::vector<std::string>& texts) {
  std::vector<TcpEndpoint> endpoints;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    absl::StatusOr<TcpEndpoint> endpoint = DecodeText(texts[rank]);
    if (!endpoint.ok()) return Annotate(endpoint.status(), absl::StrCat("rank ", rank));
    endpoints.push_back(*std::move(endpoint));
  }
  return endpoints;
}

// Links may outlive the bootstraps that open them.
const Runtime& Clock() {
  static const SystemRuntime clock;
  return clock;
}

// If it fails, connections fail when the descriptors run short, with a message that names the remedy.
void RaiseDescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

std::string NoTcpLink(std::string_view reason) { return kError + std::string(reason); }

absl::StatusOr<std::unique_ptr<WireLink>> OpenTcpLink(
    int rank, const std::string& network,
    absl::FunctionRef<absl::StatusOr<std::vector<std::string>>(std::string_view own)> gather) {
  RaiseDescriptorLimit();
  auto link = TcpLink::Listen(rank, network, Clock());
  const std::string own =
      link.ok() ? kEndpoint + (*link)->endpoint().Encode() : NoTcpLink(std::string(link.status().message()));
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> texts, gather(own));
  WEFT_ASSIGN_OR_RETURN(std::vector<TcpEndpoint> endpoints, DecodeEndpoints(texts));
  (*link)->SetPeers(std::move(endpoints));
  return std::unique_ptr<WireLink>(*std::move(link));
}

}  // namespace weft::internal
