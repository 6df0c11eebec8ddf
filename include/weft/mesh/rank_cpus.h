// CPUs on which the ranks of a node may run.
//
// Thread safety: values.
#pragma once

#include <optional>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "weft/mesh/bootstrap.h"

namespace weft {

struct RankCpus {
  std::vector<std::vector<int>> of_rank;  // By rank of the node, ascending.
  int self = 0;                           // Index of the calling rank.
  // The limit of CPU time that leaves the calling rank least, and the ranks of the node that share it.
  struct Quota {
    double cpus = 0;  // See CpuQuota.
    int ranks = 1;
  };
  std::optional<Quota> quota = std::nullopt;

  // This rank's share of its CPUs: of each, one divided by the number of ranks that may run on it. At most
  // its share of the quota. With a share of 1, no rank needs to wait for another one's
  // time slice. Rounded up by 1e-6, so that sums such as 3 x 1/3 reach the whole number.
  double Share() const;
  // True if the quota lowers that share.
  bool IsLimitedByQuota() const;

 private:
  double ShareWithoutQuota() const;
};

// `local` may be an error of this rank, which every rank returns. Errors: those of ExchangeBlobs.
// Collective: all ranks of `bootstrap`.
absl::StatusOr<RankCpus> ExchangeRankCpus(Bootstrap& bootstrap, const absl::Status& local,
                                          absl::Duration timeout);

}  // namespace weft
