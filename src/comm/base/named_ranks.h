// Ranks in the texts of waits and of missed deadlines.
//
// A failure passes from rank to rank as text (NodeLink::FailureNotice), and a flight recorder reads the ranks
// from it. These functions alone write and read them.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <string_view>

namespace weft {

struct NamedRanks {
  std::set<int> silent;   // They have no heartbeat.
  std::set<int> late;     // They have not submitted what others wait for.
  std::set<int> awaited;  // An operation waits for them; they may wait themselves.
};

// "no heartbeat from rank(s) 3; rank(s) 5 have not submitted what others wait for; ". Empty: there are none.
std::string DescribeMissing(const std::set<int>& silent, const std::set<int>& late);
// "waits for rank(s) 2, 3".
std::string DescribeAwaited(const std::set<int>& ranks);
// "waits for data of rank(s) 3".
std::string DescribeSource(int rank);

// The beginning of a text, of at most `bytes` bytes. A cut text does not end in a digit: a part of a number
// would name another rank.
std::string_view CutText(std::string_view text, size_t bytes);

// The ranks that these functions have named in a text, which has other words around it, and which CutText may
// have cut. `ranks`: the number of ranks of the run, which are from 0.
NamedRanks RanksNamedIn(std::string_view text, int ranks);

}  // namespace weft
