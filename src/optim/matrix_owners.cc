#include "src/optim/matrix_owners.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "weft/core/status.h"

namespace weft {

std::vector<MatrixTurn> AssignMatrices(absl::Span<const MatrixWork> matrices, int ranks) {
  std::vector<size_t> order(matrices.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return matrices[a].operations > matrices[b].operations; });
  const auto most_held = [&](size_t i) {
    return *std::max_element(matrices[i].held.begin(), matrices[i].held.end());
  };
  int64_t elements = 0;
  int64_t kept = 0;  // Elements that stay at their rank if each open matrix goes to its largest holder.
  for (size_t i = 0; i < matrices.size(); ++i) {
    WEFT_CHECK(matrices[i].held.size() == static_cast<size_t>(ranks), "one count for each rank");
    elements += std::accumulate(matrices[i].held.begin(), matrices[i].held.end(), int64_t{0});
    kept += most_held(i);
  }
  std::vector<double> load(static_cast<size_t>(ranks));
  std::vector<MatrixTurn> turns;
  for (const size_t i : order) {
    const MatrixWork& matrix = matrices[i];
    const int64_t others = kept - most_held(i);
    int owner = -1;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto at = static_cast<size_t>(rank);
      if ((others + matrix.held[at]) * ranks < elements) continue;
      const auto best = static_cast<size_t>(owner);
      if (owner < 0 || std::tuple(load[at], -matrix.held[at]) < std::tuple(load[best], -matrix.held[best])) {
        owner = rank;
      }
    }
    // The largest holder of each matrix holds at least its elements / ranks, so it is never passed over.
    WEFT_CHECK(owner >= 0, "a matrix without an owner");
    kept = others + matrix.held[static_cast<size_t>(owner)];
    load[static_cast<size_t>(owner)] += matrix.operations;
    turns.push_back({i, owner});
  }
  return turns;
}

}  // namespace weft
