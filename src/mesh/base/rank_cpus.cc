#include "weft/mesh/rank_cpus.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <absl/types/span.h>

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

// "0-3,8", and the quotas with their groups, if there are any: "0-3,8/1.5@77/4@78".
std::string OwnCpus() {
  std::string cpus = RangesOf(AffinityCpus());
  for (const CpuQuota& quota : CpuQuotas()) absl::StrAppend(&cpus, "/", quota.cpus, "@", quota.group);
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

absl::StatusOr<std::vector<CpuQuota>> QuotasOf(int rank, absl::Span<const absl::string_view> texts) {
  std::vector<CpuQuota> quotas;
  for (const absl::string_view text : texts) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(text, '@');
    CpuQuota& quota = quotas.emplace_back();
    if (!absl::SimpleAtod(parts.first, &quota.cpus) || !absl::SimpleAtoi(parts.second, &quota.group))
      return NoListOfCpus(rank, ToStd(text));
  }
  return quotas;
}

// `of_rank`: those of each rank of a node.
std::optional<RankCpus::Quota> TightestQuota(const std::vector<std::vector<CpuQuota>>& of_rank, int self) {
  std::optional<RankCpus::Quota> tightest;
  for (const CpuQuota& own : of_rank[static_cast<size_t>(self)]) {
    const auto has_group = [&](const std::vector<CpuQuota>& quotas) {
      return std::any_of(quotas.begin(), quotas.end(),
                         [&](const CpuQuota& quota) { return quota.group == own.group; });
    };
    const auto ranks = static_cast<int>(std::count_if(of_rank.begin(), of_rank.end(), has_group));
    if (!tightest || own.cpus / ranks < tightest->cpus / tightest->ranks) tightest = {own.cpus, ranks};
  }
  return tightest;
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
  if (quota) share = std::min(share, quota->cpus / quota->ranks);
  return share + 1e-6;
}

bool RankCpus::IsLimitedByQuota() const { return Share() < ShareWithoutQuota(); }

absl::StatusOr<RankCpus> ExchangeRankCpus(Bootstrap& bootstrap, const absl::Status& local,
                                          absl::Duration timeout) {
  const absl::StatusOr<std::string> own = local.ok() ? absl::StatusOr<std::string>(OwnCpus()) : local;
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> masks,
                        ExchangeBlobs(bootstrap, "CPUs of ranks", own, timeout));
  RankCpus found;
  std::vector<std::vector<CpuQuota>> quotas;
  for (const int rank : bootstrap.node_map().RanksOf(bootstrap.node())) {
    if (rank == bootstrap.rank()) found.self = static_cast<int>(found.of_rank.size());
    const std::vector<absl::string_view> parts = absl::StrSplit(masks[static_cast<size_t>(rank)], '/');
    WEFT_ASSIGN_OR_RETURN(found.of_rank.emplace_back(), CpusOf(rank, ToStd(parts.front())));
    WEFT_ASSIGN_OR_RETURN(quotas.emplace_back(), QuotasOf(rank, absl::MakeSpan(parts).subspan(1)));
  }
  found.quota = TightestQuota(quotas, found.self);
  return found;
}

}  // namespace weft
