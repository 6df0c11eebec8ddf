#include "sharding/pipeline/pipeline_memory.h"

#include <algorithm>
#include <utility>

#include "weft/core/status.h"

namespace weft {
namespace {

// A group without elements acquires buffers too, so that it goes through the same states as others.
constexpr size_t kSmallestBlock = 64;

}  // namespace

PipelineMemory::PipelineMemory(PipelineState& state)
    : state_(state),
      images_(state.engine().heap(), "gathered images"),
      gradients_(state.engine().heap(), "full gradients"),
      shards_(state.engine().heap(), "shards") {}

absl::StatusOr<Buffer> PipelineMemory::AcquireImage(size_t bytes) {
  WEFT_RETURN_IF_ERROR(state_.status());
  const size_t block = std::max(bytes, kSmallestBlock);
  WEFT_RETURN_IF_ERROR(MakeRoomForImage(block));
  return images_.Acquire(block);
}

absl::StatusOr<Buffer> PipelineMemory::AcquireGradients(size_t bytes) {
  WEFT_RETURN_IF_ERROR(state_.status());
  return gradients_.Acquire(std::max(bytes, kSmallestBlock));
}

absl::StatusOr<Buffer> PipelineMemory::AcquireShard(size_t bytes) {
  WEFT_RETURN_IF_ERROR(state_.status());
  return shards_.Acquire(std::max(bytes, kSmallestBlock));
}

void PipelineMemory::Retire(Transfer gather, Buffer image) {
  if (gather.valid()) retired_.push_back({std::move(image), std::move(gather)});
}

absl::Status PipelineMemory::FreeOldestImage() {
  WEFT_RETURN_IF_ERROR(state_.AwaitRelease(retired_.front().gather));
  retired_.pop_front();
  return absl::OkStatus();
}

absl::Status PipelineMemory::MakeRoomForImage(size_t bytes) {
  size_t freed = 0;
  while (!retired_.empty() && freed < bytes) {
    freed += retired_.front().image.bytes();
    WEFT_RETURN_IF_ERROR(FreeOldestImage());
  }
  return FreeReleasedImages();
}

absl::Status PipelineMemory::FreeReleasedImages() {
  while (!retired_.empty() && retired_.front().gather.TestReleased()) {
    WEFT_RETURN_IF_ERROR(FreeOldestImage());
  }
  return absl::OkStatus();
}

absl::Status PipelineMemory::FreeRetiredImages() {
  while (!retired_.empty()) WEFT_RETURN_IF_ERROR(FreeOldestImage());
  return absl::OkStatus();
}

void PipelineMemory::ShareImages(SharedBlock region, int holders) {
  region_bytes_ = region.bytes() / static_cast<size_t>(holders);
  region_ = std::make_unique<ImageRegion>(std::move(region));
}

MemoryPeaks PipelineMemory::peaks() const {
  return {images_.peak_bytes() + region_bytes_, gradients_.peak_bytes(),
          shards_.peak_bytes() + resident_bytes_};
}

void PipelineMemory::ResetPeaks() {
  images_.ResetPeak();
  gradients_.ResetPeak();
  shards_.ResetPeak();
}

void PipelineMemory::ResetAfterError() {
  if (region_ != nullptr) region_->ranges = RangeAllocator(region_->ranges.capacity());
  retired_.clear();
}

}  // namespace weft
