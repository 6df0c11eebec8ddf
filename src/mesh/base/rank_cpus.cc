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
#include "weft/mesh/cpu_quota.h"

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

// "0-3,8", and the quota behind a slash if there is one: "0-3,8/1.5".
std::string OwnCpus() {
  std::string cpus = RangesOf(AffinityCpus());
  if (const std::optional<double> quota = CpuQuota()) absl::StrAppend(&cpus, "/", *quota);
  return cpus;
}

absl::Status NoListOfCpus(int rank, std::string_view text) {
  return absl::InternalError(
      absl::StrCat("rank ", rank, " sent no list of CPUs: '", ToAbsl(text), "'", kSameVersionRemedy));
}

absl::StatusOr<std::vector<int>> CpusOf(int rank, std::string_view ranges) {
  std::vector<int> cpus;
  for (const absl::string_view range : absl::StrSplit(ToAbsl(ranges), ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(range, '-');
    int first = 0;
    int last = 0;
    if (!absl::SimpleAtoi(ends.front(), &first) || !absl::SimpleAtoi(ends.back(), &last)) {
      return NoListOfCpus(rank, ranges);
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace

double RankCpus::ShareWithoutQuota() const {
  double share = 0;
  for (const int cpu : of_rank[static_cast<size_t>(self)]) {
    share += 1.0 / static_cast<double>(
                       std::count_if(of_rank.begin(), of_rank.end(), [&](const std::vector<int>& cpus) {
                         return std::binary_search(cpus.begin(), cpus.end(), cpu);
                       }));
  }
  return share;
}

double RankCpus::Share() const {
  double share = ShareWithoutQuota();
  if (quota) share = std::min(share, *quota / static_cast<double>(of_rank.size()));
  return share + 1e-6;
}

bool RankCpus::IsLimitedByQuota() const { return Share() < ShareWithoutQuota(); }

absl::StatusOr<RankCpus> ExchangeRankCpus(Bootstrap& bootstrap, const absl::Status& local,
                                          absl::Duration timeout) {
  const absl::StatusOr<std::string> own = local.ok() ? absl::StatusOr<std::string>(OwnCpus()) : local;
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> masks,
                        ExchangeBlobs(bootstrap, "CPUs of ranks", own, timeout));
  RankCpus found;
  for (const int rank : bootstrap.node_map().RanksOf(bootstrap.node())) {
    if (rank == bootstrap.rank()) found.self = static_cast<int>(found.of_rank.size());
    const std::string& sent = masks[static_cast<size_t>(rank)];
    const std::vector<std::string> parts = absl::StrSplit(sent, '/');
    WEFT_ASSIGN_OR_RETURN(found.of_rank.emplace_back(), CpusOf(rank, parts.front()));
    if (parts.size() == 1) continue;
    double quota = 0;
    if (!absl::SimpleAtod(parts[1], &quota)) return NoListOfCpus(rank, sent);
    found.quota = std::min(found.quota.value_or(quota), quota);
  }
  return found;
}

}  // namespace weft
