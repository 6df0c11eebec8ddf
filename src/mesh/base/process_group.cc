#include "weft/mesh/process_group.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

namespace weft {

std::string RankList(absl::Span<const int> ranks) {
  constexpr size_t kShown = 8;
  const bool has_more = ranks.size() > kShown + 1;
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                      absl::StrJoin(has_more ? ranks.first(kShown) : ranks, ", "),
                      has_more ? absl::StrCat(" and ", ranks.size() - kShown, " others") : "");
}

}  // namespace weft
