#include "src/comm/base/reduction_tree.h"

#include <algorithm>
#include <bit>
#include <initializer_list>

#include "weft/core/status.h"

namespace weft {
namespace {

bool OnOneNode(const std::vector<int>& node_of_rank, int lo, int n) {
  return std::all_of(node_of_rank.begin() + lo, node_of_rank.begin() + lo + n,
                     [&](int node) { return node == node_of_rank[lo]; });
}

void CollectSubtrees(const std::vector<int>& node_of_rank, int lo, int n, std::vector<NodeSubtree>& out) {
  if (OnOneNode(node_of_rank, lo, n)) {
    out.push_back({lo, n, node_of_rank[lo]});
    return;
  }
  const int left = LeftSize(n);
  CollectSubtrees(node_of_rank, lo, left, out);
  CollectSubtrees(node_of_rank, lo + left, n - left, out);
}

class ProgramBuilder {
 public:
  explicit ProgramBuilder(absl::FunctionRef<int(int, int)> leaf_of) : leaf_of_(leaf_of) {}

  ReduceProgram Build(int lo, int n) {
    if (Emit(lo, n) == kUneven) program_.balanced_leaves.clear();
    return std::move(program_);
  }

 private:
  static constexpr int kUneven = -1;

  // Returns the height of T(lo, n) if all its leaves lie at the same depth, else kUneven.
  int Emit(int lo, int n) {
    if (const int leaf = leaf_of_(lo, n); leaf >= 0) {
      Push({ReduceInstruction::Code::kLoad, leaf}, {leaf});
      return 0;
    }
    WEFT_CHECK(n > 1, "a single rank must be a leaf of its reduction tree");
    const int left = LeftSize(n);
    const int left_leaf = leaf_of_(lo, left);
    const int right_leaf = leaf_of_(lo + left, n - left);
    if (left_leaf >= 0 && right_leaf >= 0) {
      Push({ReduceInstruction::Code::kLoadPair, left_leaf, right_leaf}, {left_leaf, right_leaf});
      return 1;
    }
    const int left_height = Emit(lo, left);
    if (right_leaf >= 0) {
      program_.instructions.push_back({ReduceInstruction::Code::kFoldLeaf, right_leaf});
      return kUneven;
    }
    const int right_height = Emit(lo + left, n - left);
    program_.instructions.push_back({ReduceInstruction::Code::kFoldTop});
    --stack_size_;
    const bool even = left_height == right_height && left_height != kUneven;
    return even ? left_height + 1 : kUneven;
  }

  void Push(ReduceInstruction instruction, std::initializer_list<int> leaves) {
    program_.instructions.push_back(instruction);
    program_.balanced_leaves.insert(program_.balanced_leaves.end(), leaves);
    program_.depth = std::max(program_.depth, ++stack_size_);
  }

  absl::FunctionRef<int(int, int)> leaf_of_;
  ReduceProgram program_;
  int stack_size_ = 0;
};

}  // namespace

int LeftSize(int n) {
  WEFT_CHECK(n >= 2, "LeftSize needs a tree of at least two ranks");
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(n - 1)));
}

std::vector<NodeSubtree> MaximalSubtrees(const std::vector<int>& node_of_rank) {
  std::vector<NodeSubtree> out;
  if (!node_of_rank.empty()) CollectSubtrees(node_of_rank, 0, static_cast<int>(node_of_rank.size()), out);
  return out;
}

ReduceProgram BuildReduceProgram(int lo, int n, absl::FunctionRef<int(int lo, int n)> leaf_of) {
  return ProgramBuilder(leaf_of).Build(lo, n);
}

ReduceProgram ReduceProgramOfRanks(int lo, int n) {
  return BuildReduceProgram(lo, n, [lo](int first, int count) { return count == 1 ? first - lo : -1; });
}

}  // namespace weft
