// The ranks of a shard group on one node hold one image together: an unshard moves nothing, and waits only
// for what peers write. In fp32 the image is their master shards end to end. In a narrower dtype each rank
// keeps its master to itself, and casts it into its range of the image once a pass. See Note [Shards in
// place].
#pragma once

#include <cstdint>
#include <memory>

#include "sharding/private_storage.h"
#include "weft/memory/buffer_pool.h"
#include "weft/memory/shared_block.h"

namespace weft {

// What a caller's own all-gather makes goes to a private image: peers may have got something else.
class InPlaceStorage final : public PrivateStorage {
 public:
  // `block`: the image, which all ranks of the shard group hold. Errors: kResourceExhausted (the master).
  static absl::StatusOr<std::unique_ptr<InPlaceStorage>> Create(const StoredGroup& group, SharedBlock block);
  ~InPlaceStorage() override;

  std::byte* image() const override;
  absl::Status EndWriting() override;
  absl::Status Gather(Priority priority) override;
  absl::Status Await() override;
  void Drop() override;
  void ResetAfterError() override;

 private:
  // An empty master: this rank's range of the block.
  InPlaceStorage(const StoredGroup& group, SharedBlock block, Buffer master);
  absl::Status CastOnce();

  const SharedBlock block_;
  bool is_read_ = false;           // From Gather to Drop.
  bool is_private_ = false;        // The image that was asked for last.
  uint64_t cast_pass_ = 0;         // The last one for which the master was cast.
  uint64_t seen_pass_ = 0;         // The last one in which all ranks' values were asked for.
  std::shared_ptr<Work> written_;  // Null: they are there.
};

}  // namespace weft
