#include "weft/mesh/rank_cpus.h"

#include <algorithm>
#include <string>
#include <string_view>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include "weft/core/status.h"
#include "weft/core/topology.h"

namespace weft {
namespace {

// "0-3,8": short on hosts with many CPUs, because every rank of the job gets it. `cpus` ascend.
std::string RangesOf(const std::vector<int>& cpus) {
  std::vector<std::string> ranges;
  for (size_t first = 0, last = 0; first < cpus.size(); first = ++last) {
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    ranges.push_back(first == last ? absl::StrCat(cpus[first]) : absl::StrCat(cpus[first], "-", cpus[last]));
  }
  return absl::StrJoin(ranges, ",");
}

absl::StatusOr<std::vector<int>> CpusOf(int rank, std::string_view ranges) {
  std::vector<int> cpus;
  for (const absl::string_view range : absl::StrSplit(ToAbsl(ranges), ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(range, '-');
    int first = 0;
    int last = 0;
    if (!absl::SimpleAtoi(ends.front(), &first) || !absl::SimpleAtoi(ends.back(), &last)) {
      return absl::InternalError(
          absl::StrCat("rank ", rank, " sent no list of CPUs: '", ToAbsl(ranges), "'", kSameVersionRemedy));
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace

double RankCpus::Share() const {
  double share = 0;
  for (const int cpu : of_rank[static_cast<size_t>(self)]) {
    share += 1.0 / static_cast<double>(
                       std::count_if(of_rank.begin(), of_rank.end(), [&](const std::vector<int>& cpus) {
                         return std::binary_search(cpus.begin(), cpus.end(), cpu);
                       }));
  }
  return share + 1e-6;
}

absl::StatusOr<RankCpus> ExchangeRankCpus(Bootstrap& bootstrap, const absl::Status& local,
                                          absl::Duration timeout) {
  const absl::StatusOr<std::string> own =
      local.ok() ? absl::StatusOr<std::string>(RangesOf(AffinityCpus())) : local;
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> masks,
                        ExchangeBlobs(bootstrap, "CPUs of ranks", own, timeout));
  RankCpus found;
  for (const int rank : bootstrap.node_map().RanksOf(bootstrap.node())) {
    if (rank == bootstrap.rank()) found.self = static_cast<int>(found.of_rank.size());
    WEFT_ASSIGN_OR_RETURN(found.of_rank.emplace_back(), CpusOf(rank, masks[static_cast<size_t>(rank)]));
  }
  return found;
}

}  // namespace weft
