// The ranks of a shard group on one node hold one image together: an unshard moves nothing, and waits only
// for what peers write. In fp32 the image is their master shards end to end. In a narrower dtype each rank
// keeps its master to itself, and casts it into its range of the image once a pass. See Note [Shards in
// place].
#pragma once

#include <cstdint>
#include <memory>

#include "sharding/group/master_shard.h"
#include "sharding/group/shared_image.h"
#include "weft/memory/shared_block.h"

namespace weft {

class InPlaceImage final : public SharedImage {
 public:
  // `block`: the image, which all ranks of the shard group hold. `master`: this rank's range of it in fp32.
  InPlaceImage(const StoredGroup& group, const MasterShard& master, SharedBlock block);
  ~InPlaceImage() override;

  std::byte* data() const override { return block_.data(); }
  absl::Status EndWriting() override;
  absl::StatusOr<bool> Gather(Priority priority) override;
  absl::Status Await() override;
  void Drop() override { is_read_ = false; }
  void ResetAfterError() override;

 private:
  absl::Status CastOnce();

  const StoredGroup group_;
  const MasterShard& master_;
  const SharedBlock block_;
  bool is_read_ = false;           // From Gather to Drop.
  uint64_t cast_pass_ = 0;         // The last one for which the master was cast.
  uint64_t seen_pass_ = 0;         // The last one in which all ranks' values were asked for.
  std::shared_ptr<Work> written_;  // Null: they are there.
};

}  // namespace weft
