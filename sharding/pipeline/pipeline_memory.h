// Node memory of a sharded model: gathered images, full gradients, and shards.
//
// Note [Retired images]
// Problem: peers may still read an image that this rank has given back, so its memory is not free yet.
// Rule: such an image is *retired* and counts as memory in use until its all-gather is released. A new image
// first waits for the oldest retired images, as many as add up to its size. Why it suffices: either as many
// bytes are freed as are acquired, or no retired image is left. So images take no more memory than if each
// was waited for, and a rank waits for no release that it does not need.
//
// Thread safety: none. Lifetime: the state must outlive the memory, the memory every buffer acquired from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "sharding/pipeline/image_region.h"
#include "sharding/pipeline/pipeline_state.h"
#include "sharding/pipeline/transfer.h"
#include "weft/memory/buffer_pool.h"
#include "weft/sharding/counters.h"

namespace weft {

class PipelineMemory {
 public:
  explicit PipelineMemory(PipelineState& state);

  // Blocks of node memory. AcquireImage may wait: see Note [Retired images].
  // Errors: kResourceExhausted; the failure of a gather that it waits for.
  absl::StatusOr<Buffer> AcquireImage(size_t bytes);
  absl::StatusOr<Buffer> AcquireGradients(size_t bytes);
  absl::StatusOr<Buffer> AcquireShard(size_t bytes);

  // Frees an image when the all-gather that filled it is released; at once if `gather` is invalid. `image`
  // may be empty: then only the all-gather is kept until its release.
  void Retire(Transfer gather, Buffer image);
  // Frees the retired images whose all-gathers are released; does not wait.
  absl::Status FreeReleasedImages();
  // Waits until every retired image is freed.
  absl::Status FreeRetiredImages();

  // From now on images are gathered into `region`, which `holders` ranks of the shard group on this node
  // share. Its bytes count as images in equal shares, in use or not. REQUIRES: no group has been created.
  void ShareImages(SharedBlock region, int holders);
  // Null unless the ranks of a node share images.
  ImageRegion* image_region() { return region_.get(); }

  // Counts bytes of this rank's shards in blocks that it shares with other ranks; negative when they are
  // freed.
  void CountResident(int64_t bytes) { resident_bytes_ += static_cast<size_t>(bytes); }
  void CountUnsharedImage() { ++state_.counters().unshared_images; }

  // Memory in use, with retired images.
  size_t image_bytes() const { return images_.in_use_bytes() + region_bytes_; }
  size_t shard_bytes() const { return shards_.in_use_bytes() + resident_bytes_; }
  // Largest memory in use since ResetPeaks.
  MemoryPeaks peaks() const;
  void ResetPeaks();

  // Forgets retired images and the places in the region, after CommEngine::ResetAfterError.
  void ResetAfterError();

 private:
  struct RetiredImage {
    Buffer image;
    Transfer gather;
  };

  absl::Status FreeOldestImage();
  absl::Status MakeRoomForImage(size_t bytes);

  PipelineState& state_;
  BufferPool images_, gradients_, shards_;
  std::unique_ptr<ImageRegion> region_;
  size_t region_bytes_ = 0;  // This rank's share of the region.
  size_t resident_bytes_ = 0;
  std::deque<RetiredImage> retired_;  // Oldest first.
};

}  // namespace weft
