#include "src/train/checkpoint/range_cache.h"

namespace weft {

RangeCache::Bytes RangeCache::Find(const Key& key) {
  const MutexLock lock(mutex_);
  const auto found = index_.find(key);
  if (found == index_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->bytes;
}

void RangeCache::Insert(const Key& key, const Bytes& bytes) {
  const MutexLock lock(mutex_);
  if (index_.count(key) != 0) return;
  entries_.push_front({key, bytes});
  index_[key] = entries_.begin();
  bytes_ += bytes->size();
  while (bytes_ > kMaxBytes) {
    bytes_ -= entries_.back().bytes->size();
    index_.erase(entries_.back().key);
    entries_.pop_back();
  }
}

}  // namespace weft
