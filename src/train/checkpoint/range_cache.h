// LRU cache of the checked ranges of a checkpoint. Many small reads of one range, as for a shard that is
// split on a later dim, read the file once.
//
// Thread safety: safe.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <absl/base/thread_annotations.h>

#include "weft/core/mutex.h"

namespace weft {

class RangeCache {
 public:
  using Key = std::pair<size_t, size_t>;  // File, and number of the range in it.
  using Bytes = std::shared_ptr<const std::vector<char>>;

  // Null if the cache does not have the range.
  Bytes Find(const Key& key);
  void Insert(const Key& key, const Bytes& bytes);

 private:
  static constexpr size_t kMaxBytes = size_t{64} << 20;

  struct Entry {
    Key key;
    Bytes bytes;
  };
  Mutex mutex_;
  std::list<Entry> entries_ ABSL_GUARDED_BY(mutex_);  // Most recently used first.
  std::map<Key, std::list<Entry>::iterator> index_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace weft
