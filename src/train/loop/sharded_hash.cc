#include "src/train/loop/sharded_hash.h"

#include <cstring>
#include <map>
#include <string>

#include <absl/strings/str_cat.h>

#include "src/train/files/shard_runs.h"
#include "weft/core/status.h"
#include "weft/train/weights_hash.h"

namespace weft {
namespace {

using Digests = std::map<std::string, uint64_t>;

absl::StatusOr<Digests> DigestShards(Module& model, const std::vector<ShardView>& shards) {
  Digests digests;
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

// The values of the digests, in the order of names. All ranks have the same names.
std::string Pack(const Digests& digests) {
  std::string packed;
  for (const auto& [name, digest] : digests) {
    packed.append(reinterpret_cast<const char*>(&digest), sizeof(digest));
  }
  return packed;
}

void AddPacked(const std::string& packed, Digests& sums) {
  WEFT_CHECK(packed.size() == sums.size() * sizeof(uint64_t), "a peer has a different number of parameters");
  const char* next = packed.data();
  for (auto& [name, sum] : sums) {
    uint64_t digest = 0;
    std::memcpy(&digest, next, sizeof(digest));
    sum += digest;
    next += sizeof(digest);
  }
}

}  // namespace

absl::StatusOr<uint64_t> HashShards(Bootstrap& bootstrap, Module& model, const std::vector<ShardView>& shards,
                                    int shard_size, absl::Duration timeout) {
  WEFT_ASSIGN_OR_RETURN(const Digests own, DigestShards(model, shards));
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> parts, bootstrap.AllGatherBlob(Pack(own), timeout));
  std::vector<Digests> replicas(parts.size() / static_cast<size_t>(shard_size), own);
  for (size_t replica = 0; replica < replicas.size(); ++replica) {
    for (auto& [name, sum] : replicas[replica]) {
      sum = 0;
    }
    for (size_t rank = replica * shard_size; rank < (replica + 1) * shard_size; ++rank) {
      AddPacked(parts[rank], replicas[replica]);
    }
  }
  for (size_t replica = 1; replica < replicas.size(); ++replica) {
    for (const auto& [name, sum] : replicas[replica]) {
      if (sum != replicas[0][name]) {
        return absl::InternalError(absl::StrCat("replica ", replica, " differs from replica 0 in '", name,
                                                "': a fault of memory or network, or a defect"));
      }
    }
  }
  return WeightsHash(replicas[0]);
}

}  // namespace weft
