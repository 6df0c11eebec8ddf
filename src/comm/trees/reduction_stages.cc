#include "src/comm/trees/reduction_stages.h"

#include <map>
#include <optional>
#include <utility>

namespace weft {
namespace {

// A subtree T(lo, n).
struct Tree {
  int lo;
  int n;
  int end() const { return lo + n; }
  bool operator<(const Tree& other) const { return std::pair(lo, n) < std::pair(other.lo, other.n); }
};

class StageBuilder {
 public:
  StageBuilder(const GroupPlacement& placement, int fan_in)
      : placement_(placement),
        fan_in_(fan_in),
        subtree_of_(static_cast<size_t>(placement.size())),
        remote_before_(static_cast<size_t>(placement.size()) + 1) {
    for (size_t i = 0; i < placement.subtrees().size(); ++i) {
      const NodeSubtree& subtree = placement.subtrees()[i];
      for (int rank = subtree.lo; rank < subtree.lo + subtree.count; ++rank) {
        const bool starts_remote = rank == subtree.lo && !placement.IsLocal(rank);
        const auto at = static_cast<size_t>(rank);
        subtree_of_[at] = static_cast<int>(i);
        remote_before_[at + 1] = remote_before_[at] + (starts_remote ? 1 : 0);
      }
    }
    for (size_t i = 0; i < placement.domain_subtrees().size(); ++i) {
      const NodeSubtree& subtree = placement.domain_subtrees()[i];
      if (subtree.count == 1 || placement.IsInDomain(subtree.lo) || !placement.IsLocal(subtree.lo)) continue;
      domain_sum_of_[{subtree.lo, subtree.count}] = static_cast<int>(i);
    }
  }

  ReductionStages Build() && {
    const Tree all{0, placement_.size()};
    Evaluate(all, all);
    return std::move(result_);
  }

 private:
  int RemoteIn(Tree tree) const {
    return remote_before_[static_cast<size_t>(tree.end())] - remote_before_[static_cast<size_t>(tree.lo)];
  }

  // Adds the stages of `tree`. The last one continues to `until`, an ancestor of which all else is saved.
  void Evaluate(Tree tree, Tree until) {
    if (RemoteIn(tree) <= fan_in_) return AddStage(tree, until);
    const int left = LeftSize(tree.n);
    Tree first{tree.lo, left};
    Tree second{tree.lo + left, tree.n - left};
    if ((placement_.me() & left) != 0) std::swap(first, second);
    Evaluate(first, first);
    Evaluate(second, until);
  }

  void AddStage(Tree tree, Tree until) {
    ReductionStage stage;
    stage.first_remote = static_cast<int>(result_.remote.size());
    AddRemote(tree);
    stage.end_remote = static_cast<int>(result_.remote.size());
    std::map<Tree, int> numbers;
    stage.program = BuildReduceProgram(until.lo, until.n, [&](int lo, int n) {
      const std::optional<StageInput> input = InputOf({lo, n});
      if (!input) return -1;
      const auto [it, is_new] = numbers.try_emplace({lo, n}, static_cast<int>(stage.inputs.size()));
      if (is_new) stage.inputs.push_back(*input);
      return it->second;
    });
    for (const auto& [leaf, number] : numbers) {
      if (const auto it = saved_.find(leaf); it != saved_.end()) {
        free_.push_back(it->second);
        saved_.erase(it);
      }
    }
    const bool is_last = until.n == placement_.size();
    stage.saves_to = is_last ? ReductionStage::kResult : (saved_[until] = TakeSaved());
    result_.stages.push_back(std::move(stage));
  }

  // Appends the remote subtrees of `tree` in the order of Note [Reduction stages].
  void AddRemote(Tree tree) {
    const int index = subtree_of_[static_cast<size_t>(tree.lo)];
    const NodeSubtree& subtree = placement_.subtrees()[static_cast<size_t>(index)];
    if (subtree.lo == tree.lo && subtree.count == tree.n) {
      if (placement_.IsLocal(tree.lo)) return;
      position_of_[tree.lo] = static_cast<int>(result_.remote.size());
      result_.remote.push_back(index);
      return;
    }
    const int left = LeftSize(tree.n);
    Tree first{tree.lo, left};
    Tree second{tree.lo + left, tree.n - left};
    if ((placement_.me() & left) != 0) std::swap(first, second);
    AddRemote(first);
    AddRemote(second);
  }

  // The input that holds the whole subtree, if there is one.
  std::optional<StageInput> InputOf(Tree tree) const {
    if (const auto it = saved_.find(tree); it != saved_.end()) {
      return StageInput{StageInput::Kind::kSaved, it->second};
    }
    if (placement_.IsLocal(tree.lo)) {
      if (const auto it = domain_sum_of_.find(tree); it != domain_sum_of_.end())
        return StageInput{StageInput::Kind::kDomainSum, it->second};
      if (tree.n == 1) return StageInput{StageInput::Kind::kLocalRank, tree.lo};
      return std::nullopt;
    }
    const int index = subtree_of_[static_cast<size_t>(tree.lo)];
    const NodeSubtree& subtree = placement_.subtrees()[static_cast<size_t>(index)];
    if (subtree.lo != tree.lo || subtree.count != tree.n) return std::nullopt;
    return StageInput{StageInput::Kind::kRemote, position_of_.at(tree.lo)};
  }

  // The place may be that of a value that the stage reads: a reduction may write to one of its leaves.
  int TakeSaved() {
    if (!free_.empty()) {
      const int index = free_.back();
      free_.pop_back();
      return index;
    }
    return result_.saved_values++;
  }

  const GroupPlacement& placement_;
  const int fan_in_;
  std::vector<int> subtree_of_;        // By rank.
  std::vector<int> remote_before_;     // By rank: remote subtrees that start at lower ranks.
  std::map<Tree, int> domain_sum_of_;  // The sums of other domains of this node.
  std::map<int, int> position_of_;     // Of remote subtrees, by their first rank.
  std::map<Tree, int> saved_;
  std::vector<int> free_;  // Saved values that are not in use.
  ReductionStages result_;
};

}  // namespace

std::shared_ptr<const ReductionStages> StagesOf(const GroupPlacement& placement, int fan_in) {
  if (placement.stages_ == nullptr || placement.stages_fan_in_ != fan_in) {
    placement.stages_ = std::make_shared<const ReductionStages>(StageBuilder(placement, fan_in).Build());
    placement.stages_fan_in_ = fan_in;
  }
  return placement.stages_;
}

}  // namespace weft
