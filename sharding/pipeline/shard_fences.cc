#include "sharding/pipeline/shard_fences.h"

#include <utility>

namespace weft {

void ShardFences::EndWriting() {
  if (context_.shards_optimizer_over_replicas()) return;  // Groups come one after the other.
  if (written_ == nullptr) written_ = std::make_shared<Work>(context_.FenceAllGathers("shards written"));
}

std::shared_ptr<Work> ShardFences::Written(const std::string& group, uint64_t& seen_pass, const Work* after) {
  if (std::exchange(seen_pass, pass_) == pass_) return nullptr;
  return written_ != nullptr ? written_ : std::make_shared<Work>(context_.FenceAllGathers(group, after));
}

void ShardFences::EndReading() { read_ = context_.FenceAllGathers("shards read"); }

absl::Status ShardFences::AwaitReaders() {
  if (absl::Status read = read_.Wait(); !read.ok()) return read;
  ++pass_;
  written_.reset();
  return absl::OkStatus();
}

void ShardFences::ResetAfterError() {
  ++pass_;
  written_.reset();
  read_ = Work();
}

}  // namespace weft
