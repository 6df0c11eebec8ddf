#include "weft/mesh/bootstrap.h"

#include <algorithm>

#include <absl/strings/cord.h>
#include <absl/strings/numbers.h>

#include "src/mesh/base/deadline.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr const char* kAgreedPayload = "weft.agreed";

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
  return internal::SecondsFromEnvironment("WEFT_TIMEOUT_S", kDefaultSeconds);
}

absl::Status AgreeOnStatus(Bootstrap& bootstrap, const absl::Status& local, absl::Duration timeout) {
  // A rank that has missed a deadline would miss the one of the agreement as well.
  if (absl::IsDeadlineExceeded(local)) return local;
  const auto blobs = bootstrap.AllGatherBlob(Encode(local), timeout);
  if (!blobs.ok()) {
    if (local.ok()) return blobs.status();
    return absl::Status(
        blobs.status().code(),
        absl::StrCat(local.message(), "; then the ranks could not agree: ", blobs.status().message()));
  }
  for (int rank = 0; rank < bootstrap.size(); ++rank) {
    const absl::Status status = rank == bootstrap.rank() ? local : Decode((*blobs)[rank]);
    if (status.ok()) continue;
    absl::Status agreed = rank == bootstrap.rank() ? status : Annotate(status, absl::StrCat("rank ", rank));
    agreed.SetPayload(kAgreedPayload, absl::Cord());
    return agreed;
  }
  return absl::OkStatus();
}

bool IsAgreedError(const absl::Status& status) { return status.GetPayload(kAgreedPayload).has_value(); }

}  // namespace weft
