// Where the image of a parameter group lies, and how the values of all ranks come to be in it. What is the
// same wherever that is, such as the states of a group and the views of its parameters, is ParamGroup's.
//
//   (Gather Await (KeepPart | Drop))*
//
// A storage holds the group's master shard too, which may be a range of the image.
//
// Thread safety: none. Collective: Gather, by all ranks of the shard group in one order.
// Lifetime: what StoredGroup names must outlive the storage.
#pragma once

#include <cstddef>
#include <string>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "weft/sharding/comm_context.h"
#include "weft/sharding/custom_collectives.h"
#include "weft/sharding/flat_layout.h"

namespace weft {

class ReplicaUpdates;

// What a storage knows of its group.
struct StoredGroup {
  CommContext& context;
  const std::string& name;
  const FlatLayout& layout;
  ReplicaUpdates& updates;  // What the master is current after.
  DType dtype;              // Of the image.
  bool zero_copy;           // Whether the image is what shards end to end are.
};

class GroupStorage {
 public:
  virtual ~GroupStorage() = default;

  // This rank's shard in fp32, zero at first.
  virtual std::byte* master() const = 0;
  // The whole parameters, from Await until the image is dropped.
  virtual std::byte* image() const = 0;

  // The master has been written, and will not be again in this pass: makes what peers read in place of it.
  // Due before CommContext::BeginForward; nothing happens where that was done in this pass.
  virtual absl::Status EndWriting() { return absl::OkStatus(); }
  // Starts to bring the values of all ranks into the image.
  virtual absl::Status Gather(Priority priority) = 0;
  // Until they are there.
  virtual absl::Status Await() = 0;
  // Gives the image back. Peers may still read what this rank gave to theirs.
  virtual void Drop() = 0;
  // Drops the image but for a part, so that the next Gather has less to do. False: no part can be kept, and
  // nothing was dropped.
  virtual absl::StatusOr<bool> KeepPart() { return false; }
  virtual void DropPart() {}
  // After an error: drops the image, whatever had become of it.
  virtual void ResetAfterError() = 0;

  // In place of the engine's from the next Gather on. Null: the engine's.
  virtual void SetCustomAllGather(CustomAllGather all_gather) = 0;
};

}  // namespace weft
