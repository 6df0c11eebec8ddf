// The ranks of a shard group on one node hold one image together, which is their master shards end to end: an
// unshard moves nothing, and waits only for what peers write. See Note [Shards in place].
#pragma once

#include <cstdint>
#include <memory>

#include "sharding/private_storage.h"
#include "weft/memory/shared_block.h"

namespace weft {

// What a caller's own all-gather makes goes to a private image: peers may have got something else.
class InPlaceStorage final : public PrivateStorage {
 public:
  // `block`: the shards of all ranks of the shard group, which hold it too.
  InPlaceStorage(const StoredGroup& group, SharedBlock block);
  ~InPlaceStorage() override;

  std::byte* image() const override;
  absl::Status Gather(Priority priority) override;
  absl::Status Await() override;
  void Drop() override;
  void ResetAfterError() override;

 private:
  const SharedBlock block_;
  bool is_private_ = false;        // The image that was asked for last.
  uint64_t seen_pass_ = 0;         // The last one in which all ranks' values were asked for.
  std::shared_ptr<Work> written_;  // Null: they are there.
};

}  // namespace weft
