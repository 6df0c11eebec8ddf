#include "src/comm/trees/halving.h"

#include <algorithm>
#include <bit>

namespace weft {
namespace {

// The node that holds a class, of 2^levels, in the group that begins at node `first`.
int HolderOf(int number, int levels, int first, int nodes) {
  for (int level = levels - 1; level >= 0; --level) {
    const int half = 1 << level;
    if (number >= half && first + half < nodes) first += half;
    number %= half;
  }
  return first;
}

// Upper bounds over the nodes of a group of 2^levels nodes, of which there are `nodes`.
struct Most {
  int classes;  // That have parts.
  int exchanges;
};
Most MostOf(int levels, int nodes, int owners) {
  if (levels == 0) return {1, 0};
  const int half = 1 << (levels - 1);
  if (nodes <= half) {
    const Most left = MostOf(levels - 1, nodes, owners);
    return {half < owners ? 2 * left.classes : left.classes, left.exchanges};
  }
  const Most right = MostOf(levels - 1, nodes - half, owners);
  // A node of the left half keeps one class. Those that the right half keeps begin with class `half`.
  return {half < owners ? right.classes : 1, std::max(levels, right.exchanges + right.classes)};
}

}  // namespace

int HalvingLevels(int nodes) { return std::bit_width(static_cast<unsigned>(nodes - 1)); }

std::vector<HalvingExchange> HalvingExchangesOf(int node, int nodes) {
  std::vector<HalvingExchange> exchanges;
  std::vector<int> held = {0};  // Classes.
  for (int level = 0; level < HalvingLevels(nodes); ++level) {
    const int half = 1 << level;
    const int first = node / (2 * half) * (2 * half);
    if (first + half >= nodes) {
      const size_t classes = held.size();
      for (size_t i = 0; i < classes; ++i) held.push_back(held[i] + half);
    } else if (node < first + half) {
      const int peer = HolderOf(held.front(), level, first + half, nodes);
      exchanges.push_back({level, peer, held.front(), held.front() + half, true});
    } else {
      for (int& number : held) {
        exchanges.push_back({level, first + number, number + half, number, false});
        number += half;
      }
    }
  }
  return exchanges;
}

int MostHalvingExchanges(int nodes, int owners) {
  return MostOf(HalvingLevels(nodes), nodes, owners).exchanges;
}

int FirstPlaceOfClass(int number, int levels) {
  int place = 0;
  for (int bit = 0; bit < levels; ++bit) place |= ((number >> bit) & 1) << (levels - 1 - bit);
  return place;
}

}  // namespace weft
