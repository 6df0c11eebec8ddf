// Interface of a parameter group's image that the ranks of a node share.
//
// Call order: (Gather Await Drop)*
//
// Thread safety: none. Collective: Gather, by all ranks of the shard group in one order.
#pragma once

#include <cstddef>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "weft/comm/types.h"
#include "weft/sharding/flat_layout.h"

namespace weft {

class SharedImage {
 public:
  virtual ~SharedImage() = default;

  // The whole parameters. REQUIRES: between Await and Drop.
  virtual std::byte* data() const = 0;

  // Declares that the master is about to be written: what was cast of it does not count any more.
  virtual void BeginWriting() {}
  // Declares that the master is written and stays unchanged in this epoch. Writes the values that peers read.
  virtual absl::Status EndWriting() { return absl::OkStatus(); }
  // The place for the cast of a piece of this rank's shard. Null: an update may not write the cast.
  // REQUIRES: BeginWriting was called; shards may be written.
  virtual std::byte* PlaceForCast(const ShardPiece& /*piece*/) { return nullptr; }
  // Declares that an update has written the casts of the whole shard, which stays unchanged in this epoch.
  virtual void MarkCast() {}
  // Starts to bring the values of all ranks into the image. Returns false, on all ranks alike, if it has no
  // room: then nothing was started.
  virtual absl::StatusOr<bool> Gather(Priority priority) = 0;
  // Waits until the values are there.
  virtual absl::Status Await() = 0;
  // Gives the image back. Peers may still read it, and this rank's part of it.
  virtual void Drop() = 0;
  // Returns to the state before the first Gather, after an error.
  virtual void ResetAfterError() = 0;
};

}  // namespace weft
