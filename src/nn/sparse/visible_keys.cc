#include "src/nn/sparse/visible_keys.h"

#include <algorithm>
#include <numeric>

#include "src/nn/attention/attention_plan.h"

namespace weft {

VisibleKeys::VisibleKeys(const AttentionMask& mask, absl::Span<const KeyBlock> keys) : mask_(mask) {
  int64_t number = 0;
  for (const KeyBlock& block : keys) {
    for (const TokenRun& run : *block.runs) {
      if (run.count > 0) runs_of_document_[run.document].push_back({run, number});
      number += run.count;
    }
  }
  AssignRanks(number);
}

void VisibleKeys::AssignRanks(int64_t keys) {
  number_of_rank_.resize(static_cast<size_t>(keys));
  int64_t rank = 0;
  for (auto& [document, runs] : runs_of_document_) {
    std::vector<Run*> by_position;
    for (Run& run : runs) by_position.push_back(&run);
    std::stable_sort(by_position.begin(), by_position.end(),
                     [](const Run* a, const Run* b) { return a->tokens.position < b->tokens.position; });
    for (Run* run : by_position) {
      run->rank = rank;
      const auto first = number_of_rank_.begin() + rank;
      std::iota(first, first + run->tokens.count, static_cast<int32_t>(run->number));
      rank += run->tokens.count;
    }
  }
}

void VisibleKeys::SpansOf(int64_t document, int64_t position, std::vector<VisibleSpan>& spans) const {
  spans.clear();
  const auto runs = runs_of_document_.find(document);
  if (runs == runs_of_document_.end()) return;
  for (const Run& run : runs->second) {
    const ColumnSpan visible = VisibleKeysOfRun(mask_, position, run.tokens);
    if (visible.begin >= visible.end) continue;
    spans.push_back({run.number + visible.begin, run.number + visible.end, run.rank + visible.begin});
  }
}

}  // namespace weft
