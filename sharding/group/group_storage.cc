#include "sharding/group/group_storage.h"

#include "sharding/group/in_place_image.h"
#include "sharding/group/node_shared_image.h"
#include "weft/core/status.h"

namespace weft {

absl::StatusOr<std::unique_ptr<GroupStorage>> GroupStorage::Create(CommContext& context,
                                                                   const GroupSpec& group,
                                                                   ReplicaUpdates& updates,
                                                                   SharedBlock block) {
  std::unique_ptr<GroupStorage> storage;
  if (block && !group.is_cast()) {
    storage.reset(
        new GroupStorage(context, group, updates, MasterShard::InImage(context, group, block.data())));
  } else {
    WEFT_ASSIGN_OR_RETURN(MasterShard master, MasterShard::Create(context, group));
    storage.reset(new GroupStorage(context, group, updates, std::move(master)));
  }
  if (block) {
    storage->shared_ =
        std::make_unique<InPlaceImage>(context, group, updates, storage->master_, std::move(block));
  } else if (context.memory().image_region() != nullptr) {
    WEFT_ASSIGN_OR_RETURN(storage->shared_,
                          NodeSharedImage::Create(context, group, updates, storage->master_));
  }
  return storage;
}

absl::Status GroupStorage::EndWriting() {
  return shared_ == nullptr ? absl::OkStatus() : shared_->EndWriting();
}

absl::Status GroupStorage::Gather(Priority priority) {
  is_shared_ = false;
  if (shared_ != nullptr && !private_.has_custom_all_gather()) {
    WEFT_ASSIGN_OR_RETURN(is_shared_, shared_->Gather(priority));
  }
  return is_shared_ ? absl::OkStatus() : private_.Gather(priority);
}

absl::Status GroupStorage::Await() { return is_shared_ ? shared_->Await() : private_.Await(); }

void GroupStorage::Drop() {
  if (std::exchange(is_shared_, false)) {
    shared_->Drop();
  } else {
    private_.Drop();
  }
}

absl::StatusOr<bool> GroupStorage::KeepPart() {
  if (is_shared_) return false;
  return private_.KeepPart();
}

void GroupStorage::ResetAfterError() {
  private_.ResetAfterError();
  if (shared_ != nullptr) shared_->ResetAfterError();
  is_shared_ = false;
}

}  // namespace weft
