#include "src/train/loop/sharded_hash.h"

#include <algorithm>
#include <cstring>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "src/train/files/shard_runs.h"
#include "weft/core/status.h"
#include "weft/mesh/process_group.h"
#include "weft/train/weights_hash.h"

namespace weft {
namespace {

absl::StatusOr<ShardDigests> DigestShards(Module& model, const std::vector<ShardView>& shards) {
  ShardDigests digests;
  for (const std::shared_ptr<Parameter>& parameter : model.AllParameters()) {
    digests[parameter->name] = 0;
  }
  for (const ShardView& shard : shards) {
    uint64_t& digest = digests[shard.parameter->name];
    WEFT_RETURN_IF_ERROR(ForEachRun(shard, [&digest](int64_t first, absl::Span<const float> values) {
      digest += DigestOfElements(first, values);
      return absl::OkStatus();
    }));
  }
  return digests;
}

// The values of the digests, in the order of names.
std::string Pack(const ShardDigests& digests) {
  std::string packed;
  for (const auto& [name, digest] : digests) {
    packed.append(reinterpret_cast<const char*>(&digest), sizeof(digest));
  }
  return packed;
}

// `names`: the digests of any rank.
ShardDigests Unpack(const std::string& packed, const ShardDigests& names) {
  WEFT_CHECK(packed.size() == names.size() * sizeof(uint64_t), "a peer has a different number of parameters");
  ShardDigests digests = names;
  const char* next = packed.data();
  for (auto& [name, digest] : digests) {
    std::memcpy(&digest, next, sizeof(digest));
    next += sizeof(digest);
  }
  return digests;
}

// The ranks whose value is not that of the majority; all ranks if no value has a majority.
std::vector<int> DifferingRanks(const std::map<uint64_t, std::vector<int>>& ranks_of_value) {
  std::vector<int> differing;
  size_t all = 0;
  size_t largest = 0;
  for (const auto& [value, ranks] : ranks_of_value) {
    all += ranks.size();
    largest = std::max(largest, ranks.size());
  }
  for (const auto& [value, ranks] : ranks_of_value) {
    if (ranks.size() == largest && 2 * largest > all) continue;
    differing.insert(differing.end(), ranks.begin(), ranks.end());
  }
  std::sort(differing.begin(), differing.end());
  return differing;
}

}  // namespace

absl::Status CompareReplicas(absl::Span<const ShardDigests> digests, int shard_size) {
  const size_t replicas = digests.size() / static_cast<size_t>(shard_size);
  for (int position = 0; position < shard_size; ++position) {
    for (const auto& [name, unused] : digests[0]) {
      std::map<uint64_t, std::vector<int>> ranks_of_value;
      for (size_t rank = static_cast<size_t>(position); rank < digests.size();
           rank += static_cast<size_t>(shard_size)) {
        ranks_of_value[digests[rank].at(name)].push_back(static_cast<int>(rank));
      }
      if (ranks_of_value.size() == 1) continue;
      const std::vector<int> differing = DifferingRanks(ranks_of_value);
      return absl::InternalError(absl::StrCat(
          "replicas differ in '", name, "': ", RankList(differing),
          differing.size() == 1          ? " holds other weights than the others"
          : differing.size() == replicas ? " hold different weights, without a majority"
                                         : " hold other weights than the majority",
          "; a fault of memory or network, or a defect: go on from a checkpoint on other hosts"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> HashShards(Bootstrap& bootstrap, Module& model, const std::vector<ShardView>& shards,
                                    int shard_size, absl::Duration timeout) {
  const absl::StatusOr<ShardDigests> own = DigestShards(model, shards);
  const absl::StatusOr<std::string> packed =
      own.ok() ? absl::StatusOr<std::string>(Pack(*own)) : own.status();
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> parts,
                        ExchangeBlobs(bootstrap, "digests of weights", packed, timeout));
  std::vector<ShardDigests> digests;
  digests.reserve(parts.size());
  for (const std::string& part : parts) digests.push_back(Unpack(part, *own));
  WEFT_RETURN_IF_ERROR(CompareReplicas(digests, shard_size));
  ShardDigests sums = digests[0];
  for (size_t rank = 1; rank < static_cast<size_t>(shard_size); ++rank) {
    for (auto& [name, sum] : sums) sum += digests[rank].at(name);
  }
  return WeightsHash(sums);
}

}  // namespace weft
