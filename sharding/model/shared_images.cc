#include "sharding/model/shared_images.h"

#include <absl/strings/str_cat.h>

#include "sharding/plan/region_plan.h"
#include "weft/core/status.h"

namespace weft {
namespace {

std::vector<size_t> ImageBytes(const std::vector<GroupSpec>& specs) {
  std::vector<size_t> bytes;
  bytes.reserve(specs.size());
  for (const GroupSpec& spec : specs) bytes.push_back(spec.image_bytes());
  return bytes;
}

absl::StatusOr<SharedImages> Allocate(CommEngine& engine, const ProcessGroup& shard_group,
                                      const std::vector<GroupSpec>& specs,
                                      const std::vector<PassEvent>& order, const ShardingPolicy& policy,
                                      Residency residency) {
  Bootstrap& bootstrap = engine.bootstrap();
  const auto share = [&](absl::Span<const SharedBlockRequest> requests) {
    return ShareBlocks(bootstrap, engine.heap(), requests, engine.timeout());
  };
  SharedImages images;
  images.in_place.resize(specs.size());
  if (residency == Residency::kInPlace) {
    std::vector<SharedBlockRequest> requests;
    for (const size_t bytes : ImageBytes(specs)) requests.push_back({shard_group.ranks, bytes});
    WEFT_ASSIGN_OR_RETURN(images.in_place, share(requests));
  } else if (residency == Residency::kNodeShared) {
    SharedBlockRequest request;
    request.bytes = PlanRegionBytes(order, ImageBytes(specs), policy);
    for (const int rank : shard_group.ranks) {
      if (engine.share_domains().map.SameNode(rank, bootstrap.rank())) request.holders.push_back(rank);
    }
    WEFT_ASSIGN_OR_RETURN(std::vector<SharedBlock> region, share({request}));
    images.region = std::move(region.front());
    images.region_holders = static_cast<int>(request.holders.size());
  }
  return images;
}

// OK if this rank's segment has room for what a group keeps beside a shared image: the master, unless it lies
// in the image, and the cast shard of images shared on each node. Errors: kResourceExhausted.
absl::Status CheckRoomForShards(NodeHeap& heap, const std::vector<GroupSpec>& specs, int shard_rank,
                                Residency residency) {
  std::vector<std::byte*> blocks;
  absl::Status status;
  for (const GroupSpec& spec : specs) {
    const bool in_place = residency == Residency::kInPlace;
    const size_t master = in_place && !spec.is_cast() ? 0 : spec.master_bytes(shard_rank);
    const size_t cast = !in_place && spec.is_cast() ? spec.shard_bytes(shard_rank, spec.dtypes.param) : 0;
    const absl::StatusOr<std::byte*> block = heap.Allocate(master + cast);
    if (block.ok()) blocks.push_back(*block);
    status.Update(block.status());
  }
  for (std::byte* block : blocks) heap.Free(block);
  return status;
}

}  // namespace

absl::StatusOr<SharedImages> AllocateSharedImages(CommEngine& engine, const ProcessGroup& shard_group,
                                                  const std::vector<GroupSpec>& specs,
                                                  const std::vector<PassEvent>& order,
                                                  const ShardingPolicy& policy, ResidencyChoice& residency) {
  absl::StatusOr<SharedImages> images =
      Allocate(engine, shard_group, specs, order, policy, residency.residency);
  if (policy.node_shared != NodeShared::kAuto || residency.residency == Residency::kPrivate) return images;
  if (images.ok()) {
    const absl::Status room =
        AgreeOnStatus(engine.bootstrap(),
                      CheckRoomForShards(engine.heap(), specs, shard_group.group_rank, residency.residency),
                      engine.timeout());
    if (room.ok()) return images;
    images = room;  // Frees them.
  }
  if (!absl::IsResourceExhausted(images.status())) return images;
  residency = {Residency::kPrivate, absl::StrCat("node memory has no room for images that ranks share: ",
                                                 images.status().message())};
  return Allocate(engine, shard_group, specs, order, policy, residency.residency);
}

}  // namespace weft
