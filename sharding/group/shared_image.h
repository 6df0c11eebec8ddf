// An image of a parameter group that ranks of a node hold together.
//
//   (Gather Await Drop)*
//
// Thread safety: none. Collective: Gather, by all ranks of the shard group in one order.
#pragma once

#include <cstddef>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "weft/comm/types.h"

namespace weft {

class SharedImage {
 public:
  virtual ~SharedImage() = default;

  // The whole parameters, from Await until Drop.
  virtual std::byte* data() const = 0;

  // The master has been written, and will not be again in this pass: makes what peers read in place of it.
  virtual absl::Status EndWriting() { return absl::OkStatus(); }
  // Starts to bring the values of all ranks there. False: there is no place now, nor on any other rank.
  virtual absl::StatusOr<bool> Gather(Priority priority) = 0;
  // Until they are there.
  virtual absl::Status Await() = 0;
  // This rank reads it no more; peers may, and what this rank gave to theirs.
  virtual void Drop() = 0;
  // After an error: as before the first Gather.
  virtual void ResetAfterError() = 0;
};

}  // namespace weft
