// Which group comes next: the order of one pass, recorded to predict the next one.
//
// Prediction is by place: as long as the visits of this pass repeat the recorded ones, what followed there
// follows here. From the first difference on nothing is predicted, until the next pass. Ranks that run the
// same model therefore predict the same.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <absl/types/span.h>

namespace weft {

class ExecutionOrder {
 public:
  // Starts a pass that is expected to visit `expected` in order; nothing: no prediction.
  void Begin(std::vector<int> expected) {
    expected_ = std::move(expected);
    visited_.clear();
    matches_ = true;
  }

  // Notes a visit; returns what follows it, at most `depth` visits.
  absl::Span<const int> Visit(int group, int depth) {
    const size_t place = visited_.size();
    visited_.push_back(group);
    matches_ = matches_ && place < expected_.size() && expected_[place] == group;
    if (!matches_) return {};
    return absl::MakeConstSpan(expected_).subspan(place + 1, static_cast<size_t>(depth));
  }

  const std::vector<int>& visited() const { return visited_; }

 private:
  std::vector<int> expected_;
  std::vector<int> visited_;
  bool matches_ = false;
};

}  // namespace weft
