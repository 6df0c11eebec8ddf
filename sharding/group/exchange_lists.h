// Exchange of lists between all ranks.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "weft/core/status.h"
#include "weft/mesh/bootstrap.h"

namespace weft {

// The lists of all ranks, by rank. `what`: the exchange, for errors. Entries have no padding.
// Collective: all ranks of `bootstrap`. Errors: those of ExchangeBlobs.
template <typename Entry>
absl::StatusOr<std::vector<std::vector<Entry>>> ExchangeLists(Bootstrap& bootstrap, std::string_view what,
                                                              const absl::StatusOr<std::vector<Entry>>& own,
                                                              absl::Duration timeout) {
  static_assert(std::is_trivially_copyable_v<Entry>);
  const auto blob = [&]() -> absl::StatusOr<std::string> {
    WEFT_RETURN_IF_ERROR(own.status());
    return std::string(reinterpret_cast<const char*>(own->data()), own->size() * sizeof(Entry));
  };
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> blobs,
                        ExchangeBlobs(bootstrap, what, blob(), timeout));
  std::vector<std::vector<Entry>> lists;
  for (const std::string& message : blobs) {
    WEFT_CHECK(message.size() % sizeof(Entry) == 0, "a rank sent no list of entries");
    std::vector<Entry>& list = lists.emplace_back(message.size() / sizeof(Entry));
    if (!list.empty()) std::memcpy(list.data(), message.data(), message.size());
  }
  return lists;
}

}  // namespace weft
