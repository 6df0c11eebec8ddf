#include "src/train/plan/agreement.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "src/train/files/json.h"
#include "weft/core/hash.h"
#include "weft/core/status.h"
#include "weft/mesh/process_group.h"

namespace weft {
namespace {

std::string Encode(const std::vector<RunProperty>& properties) {
  Json items = Json::array();
  for (const RunProperty& property : properties) items.push_back({property.name, property.value});
  return JsonText(items);
}

// Values by name. Empty if the blob is not a list of properties.
std::map<std::string, std::string> Decode(const std::string& blob) {
  const Json items = ParseJson(blob);
  std::map<std::string, std::string> values;
  if (!items.is_array()) return values;
  for (const Json& item : items) {
    if (item.is_array() && item.size() == 2 && item[0].is_string() && item[1].is_string())
      values[item[0]] = item[1];
  }
  return values;
}

// "--lr is 0.1 on rank 0 and 0.2 on ranks 1, 2". Empty if all ranks have one value.
std::string DescribeDifference(const std::string& name,
                               const std::vector<std::map<std::string, std::string>>& values_of_rank) {
  std::map<std::string, std::vector<int>> ranks_of_value;
  for (size_t rank = 0; rank < values_of_rank.size(); ++rank) {
    const auto found = values_of_rank[rank].find(name);
    const std::string value = found == values_of_rank[rank].end() ? "not known" : found->second;
    ranks_of_value[value].push_back(static_cast<int>(rank));
  }
  if (ranks_of_value.size() == 1) return "";
  std::vector<std::pair<std::vector<int>, std::string>> values;  // Ordered by their lowest ranks.
  values.reserve(ranks_of_value.size());
  for (auto& [value, ranks] : ranks_of_value) values.emplace_back(std::move(ranks), value);
  std::sort(values.begin(), values.end());
  constexpr size_t kMaxNamed = 3;
  std::vector<std::string> texts;
  for (size_t i = 0; i < std::min(values.size(), kMaxNamed); ++i) {
    texts.push_back(absl::StrCat(values[i].second, " on ", RankList(values[i].first)));
  }
  if (values.size() > kMaxNamed)
    texts.push_back(absl::StrCat(values.size() - kMaxNamed, " other values on other ranks"));
  return absl::StrCat(name, " is ", absl::StrJoin(texts, " and "));
}

}  // namespace

absl::Status AgreeOnProperties(Bootstrap& bootstrap, const std::vector<RunProperty>& properties,
                               absl::Duration timeout) {
  const std::string own = Encode(properties);
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> digests,
                        ExchangeBlobs(bootstrap, "digest of the run", HashText(Hash64(own)), timeout));
  if (std::set<std::string>(digests.begin(), digests.end()).size() == 1) return absl::OkStatus();

  // Ranks exchange the values only if a digest differs.
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> blobs,
                        ExchangeBlobs(bootstrap, "properties of the run", own, timeout));
  std::vector<std::map<std::string, std::string>> values_of_rank;
  std::set<std::string> names;
  for (const std::string& blob : blobs) {
    values_of_rank.push_back(Decode(blob));
    for (const auto& [name, value] : values_of_rank.back()) names.insert(name);
  }
  std::vector<std::string> differences;
  bool flags_differ = false;
  for (const std::string& name : names) {
    const std::string difference = DescribeDifference(name, values_of_rank);
    if (difference.empty()) continue;
    differences.push_back(difference);
    flags_differ |= name.starts_with("--");
  }
  const std::string text = absl::StrJoin(differences, "; ");
  return flags_differ
             ? absl::InvalidArgumentError(absl::StrCat("the ranks were given different flags: ", text,
                                                       ": start all ranks with the same ones"))
             : absl::DataLossError(absl::StrCat("the ranks do not run the same: ", text,
                                                ": put the same files and the same program on every host"));
}

absl::Status AgreeOnCause(Bootstrap& bootstrap, const absl::Status& local, absl::Duration timeout) {
  if (absl::IsDeadlineExceeded(local)) return local;
  WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, absl::IsAborted(local) ? absl::OkStatus() : local, timeout));
  return AgreeOnStatus(bootstrap, local, timeout);
}

}  // namespace weft
