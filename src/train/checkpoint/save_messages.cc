#include "src/train/checkpoint/save_messages.h"

#include <cstring>
#include <type_traits>
#include <utility>

#include <absl/strings/str_cat.h>

#include "src/train/files/json.h"

namespace weft {
namespace {

constexpr const char* kNotOfThisExchange =
    "a peer sent another message: ranks call the saver in different orders";

}  // namespace

std::string EncodeTensors(const CheckpointState& state) {
  Json tensors = Json::array();
  for (const CheckpointArrays& arrays : state.arrays) {
    for (const ShardView& shard : arrays.shards) {
      const Shape& shape = shard.parameter->shape;
      tensors.push_back({arrays.file, shard.parameter->name + arrays.suffix,
                         std::vector<int64_t>(shape.begin(), shape.end())});
    }
  }
  return JsonText({{"step", state.step}, {"tensors", std::move(tensors)}});
}

absl::StatusOr<std::vector<CheckpointLayout::Tensor>> DecodeTensors(const std::vector<std::string>& blobs,
                                                                    int64_t step) {
  std::vector<CheckpointLayout::Tensor> tensors;
  std::map<std::pair<std::string, std::string>, size_t> index;
  for (size_t rank = 0; rank < blobs.size(); ++rank) {
    const Json json = ParseJson(blobs[rank]);
    if (!json.is_object() || !json.contains("step") || !json.contains("tensors")) {
      return absl::InternalError(kNotOfThisExchange);
    }
    const auto peer_step = json.at("step").get<int64_t>();
    if (peer_step != step) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", rank, " saves step ", peer_step, ", but another rank saves step ", step));
    }
    for (const Json& item : json.at("tensors")) {
      CheckpointLayout::Tensor tensor{item[0], item[1], {}};
      const auto sizes = item[2].get<std::vector<int64_t>>();
      tensor.shape.assign(sizes.begin(), sizes.end());
      const auto [found, added] = index.emplace(std::pair(tensor.stem, tensor.name), tensors.size());
      if (added) {
        tensors.push_back(std::move(tensor));
      } else if (tensors[found->second].shape != tensor.shape) {
        return absl::InvalidArgumentError(
            absl::StrCat("the array '", tensor.name, "' has different shapes on different ranks"));
      }
    }
  }
  return tensors;
}

std::string EncodePart(const SnapshotWriter& writer, const std::map<std::string, int64_t>& counts) {
  const std::vector<SnapshotWriter::Item>& items = writer.items();
  std::string blob;
  const auto append = [&blob](const auto& value) {
    blob.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  append(static_cast<uint64_t>(items.size()));
  for (const SnapshotWriter::Item& item : items) {
    append(static_cast<uint64_t>(item.file));
    append(item.range);
  }
  return blob + JsonText(counts);
}

absl::StatusOr<RankPart> DecodePart(std::string_view blob, size_t files) {
  static_assert(std::is_trivially_copyable_v<FileRange>);
  RankPart part;
  part.ranges.resize(files);
  const auto take = [&blob](auto& value) {
    if (blob.size() < sizeof(value)) return false;
    std::memcpy(&value, blob.data(), sizeof(value));
    blob.remove_prefix(sizeof(value));
    return true;
  };
  uint64_t count = 0;
  if (!take(count)) return absl::InternalError(kNotOfThisExchange);
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t file = 0;
    FileRange range;
    if (!take(file) || !take(range) || file >= files) return absl::InternalError(kNotOfThisExchange);
    part.ranges[file].push_back(range);
  }
  const Json counts = ParseJson(blob);
  if (!counts.is_object()) return absl::InternalError(kNotOfThisExchange);
  part.counts_of_parameters = counts.get<std::map<std::string, int64_t>>();
  return part;
}

}  // namespace weft
