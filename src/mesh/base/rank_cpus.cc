#include "weft/mesh/rank_cpus.h"

#include <algorithm>
#include <string>

#include <absl/strings/numbers.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include "weft/core/status.h"
#include "weft/core/topology.h"

namespace weft {

double RankCpus::Share() const {
  double share = 0;
  for (const int cpu : of_rank[static_cast<size_t>(self)]) {
    share += 1.0 / static_cast<double>(
                       std::count_if(of_rank.begin(), of_rank.end(), [&](const std::vector<int>& cpus) {
                         return std::binary_search(cpus.begin(), cpus.end(), cpu);
                       }));
  }
  // Rounding may leave a sum of shares such as 3 x 1/3 just below the whole number.
  return share + 1e-6;
}

absl::StatusOr<RankCpus> ExchangeRankCpus(Bootstrap& bootstrap, const absl::Status& local,
                                          absl::Duration timeout) {
  const absl::StatusOr<std::string> own =
      local.ok() ? absl::StatusOr<std::string>(absl::StrJoin(AffinityCpus(), ",")) : local;
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> masks,
                        ExchangeBlobs(bootstrap, "CPUs of ranks", own, timeout));
  RankCpus found;
  for (const int rank : bootstrap.node_map().RanksOf(bootstrap.node())) {
    if (rank == bootstrap.rank()) found.self = static_cast<int>(found.of_rank.size());
    std::vector<int>& cpus = found.of_rank.emplace_back();
    for (const absl::string_view cpu : absl::StrSplit(masks[static_cast<size_t>(rank)], ',')) {
      WEFT_CHECK(absl::SimpleAtoi(cpu, &cpus.emplace_back()), "a peer sent no list of CPUs");
    }
  }
  return found;
}

}  // namespace weft
