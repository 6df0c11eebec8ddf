// Key-value store of ranks in one process, threads or simulated, and the exchange of a group's members over
// it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tests/support/test_timeout.h"
#include "weft/comm/comm_engine.h"
#include "weft/core/mutex.h"

namespace weft::testing {

class BlobStore {
 public:
  void Put(const std::string& key, std::string_view blob) {
    const MutexLock lock(mutex_);
    blobs_[key] = std::string(blob);
  }
  std::optional<std::string> Get(const std::string& key) {
    const MutexLock lock(mutex_);
    const auto found = blobs_.find(key);
    return found == blobs_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  Mutex mutex_;
  std::map<std::string, std::string> blobs_ ABSL_GUARDED_BY(mutex_);
};

// The exchange of one call of GroupLane. `call` differs between the calls of a group.
// Errors: kDeadlineExceeded (names the missing ranks).
inline GroupExchange ExchangeOver(BlobStore& store, Runtime& runtime, const ProcessGroup& group,
                                  const std::string& call, absl::Duration timeout = kTestTimeout) {
  return [&store, &runtime, group, call,
          timeout](std::string_view blob) -> absl::StatusOr<std::vector<std::string>> {
    const auto key = [&](int rank) {
      return absl::StrCat(call, " of ", absl::StrJoin(group.ranks, ","), ": ", rank);
    };
    const Deadline deadline(runtime, timeout);
    store.Put(key(group.ranks[static_cast<size_t>(group.group_rank)]), blob);
    std::vector<std::string> blobs(group.ranks.size());
    while (true) {
      std::vector<int> missing;
      for (size_t member = 0; member < blobs.size(); ++member) {
        std::optional<std::string> theirs = store.Get(key(group.ranks[member]));
        if (!theirs) missing.push_back(group.ranks[member]);
        if (theirs) blobs[member] = *std::move(theirs);
      }
      if (missing.empty()) return blobs;
      if (deadline.HasPassed())
        return absl::DeadlineExceededError(absl::StrCat("no blob from ", RankList(missing)));
      runtime.SleepFor(20'000);
    }
  };
}

// The group of `ranks` as `rank` sees it. REQUIRES: `rank` is one of them.
inline ProcessGroup GroupOf(std::string name, std::vector<int> ranks, int rank) {
  ProcessGroup group{std::move(name), std::move(ranks), 0};
  while (group.ranks[static_cast<size_t>(group.group_rank)] != rank) ++group.group_rank;
  return group;
}

}  // namespace weft::testing
