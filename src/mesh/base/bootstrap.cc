#include "weft/mesh/bootstrap.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include <absl/strings/numbers.h>

#include "weft/core/status.h"

namespace weft {
namespace {

// Format of a status as a blob: the code in decimal, a line feed, the message.
std::string Encode(const absl::Status& status) {
  return absl::StrCat(static_cast<int>(status.code()), "\n", status.message());
}

absl::Status Decode(std::string_view blob) {
  const size_t line_end = blob.find('\n');
  int code = 0;
  const bool valid =
      line_end != std::string_view::npos && absl::SimpleAtoi(ToAbsl(blob.substr(0, line_end)), &code);
  if (!valid)
    return absl::InternalError(
        "sent no status: all ranks must call the same collective at the same point of the program");
  return {static_cast<absl::StatusCode>(code), ToAbsl(blob.substr(line_end + 1))};
}

}  // namespace

int NodeMap::node_count() const {
  return node_of_rank.empty() ? 0 : *std::max_element(node_of_rank.begin(), node_of_rank.end()) + 1;
}

std::vector<int> NodeMap::RanksOf(int node) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size(); ++rank) {
    if (node_of_rank[rank] == node) ranks.push_back(rank);
  }
  return ranks;
}

NodeMap NodeMap::OneNode(int ranks) { return RanksPerNode(ranks, ranks); }

NodeMap NodeMap::RanksPerNode(int ranks, int ranks_per_node) {
  WEFT_CHECK(ranks >= 1 && ranks_per_node >= 1, "a node map needs at least one rank and one rank per node");
  NodeMap map;
  for (int rank = 0; rank < ranks; ++rank) map.node_of_rank.push_back(rank / ranks_per_node);
  return map;
}

absl::StatusOr<absl::Duration> DefaultTimeout() {
  constexpr double kDefaultSeconds = 600;
  const char* text = std::getenv("WEFT_TIMEOUT_S");
  if (text == nullptr) return absl::Seconds(kDefaultSeconds);
  double seconds = 0;
  if (!absl::SimpleAtod(text, &seconds) || !std::isfinite(seconds) || seconds <= 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "WEFT_TIMEOUT_S is '", text,
        "': set it to a positive number of seconds, or unset it for the default of ", kDefaultSeconds));
  }
  return absl::Seconds(seconds);
}

absl::Status AgreeOnStatus(Bootstrap& bootstrap, const absl::Status& local, absl::Duration timeout) {
  const auto blobs = bootstrap.AllGatherBlob(Encode(local), timeout);
  if (!blobs.ok())
    return local.ok() ? blobs.status() : local;  // The local error may be why the exchange failed.
  for (int rank = 0; rank < bootstrap.size(); ++rank) {
    const absl::Status status = rank == bootstrap.rank() ? local : Decode((*blobs)[rank]);
    if (status.ok()) continue;
    return rank == bootstrap.rank() ? status : Annotate(status, absl::StrCat("rank ", rank));
  }
  return absl::OkStatus();
}

}  // namespace weft
