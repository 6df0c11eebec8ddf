// Counter of slices that are issued in order and finish in any order.
//
// Thread safety: none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace weft {

class PrefixCounter {
 public:
  int64_t issued() const { return issued_; }
  // Slices below this number have all finished.
  int64_t done() const { return done_; }
  // Slices that are issued and have not finished.
  int64_t outstanding() const { return issued_ - done_ - static_cast<int64_t>(finished_ahead_.size()); }
  // Issues `slices` slices, and returns the first of them.
  int64_t Issue(int64_t slices = 1) { return std::exchange(issued_, issued_ + slices); }
  void Finish(int64_t slice) {
    if (slice != done_) {
      finished_ahead_.push_back(slice);
      return;
    }
    ++done_;
    const auto next = [this] { return std::find(finished_ahead_.begin(), finished_ahead_.end(), done_); };
    for (auto found = next(); found != finished_ahead_.end(); found = next()) {
      finished_ahead_.erase(found);
      ++done_;
    }
  }

 private:
  int64_t issued_ = 0;
  int64_t done_ = 0;
  std::vector<int64_t> finished_ahead_;  // Finished slices above done_.
};

}  // namespace weft
