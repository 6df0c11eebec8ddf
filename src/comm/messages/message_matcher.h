// Matching of announced messages with posted receives. Pure.
//
// An announcement and a receive match if they have the same channel and tag, and the receive accepts the
// sender. Announcements of one sender match in the order of its submissions, and receives in the order of
// theirs.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <absl/container/flat_hash_map.h>

#include "src/comm/base/operation_record.h"
#include "src/comm/messages/signal.h"

namespace weft {

struct Announcement {
  int source;  // Bootstrap rank.
  Signal signal;
};

class MessageMatcher {
 public:
  using Record = std::shared_ptr<OperationRecord>;

  // The receive that matches the announcement, which is removed. Nothing if none does: the announcement then
  // waits.
  std::optional<Record> Announce(const Announcement& announcement);
  // The announcement that matches the receive, which is removed. Nothing if none does: the receive then
  // waits.
  std::optional<Announcement> Post(const Record& receive);

  // Receives that wait, in the order of submission.
  std::vector<Record> waiting() const;

 private:
  using Key = std::pair<uint64_t, int>;  // Channel and tag.
  struct Queue {
    std::deque<Announcement> announced;
    std::deque<Record> posted;
  };
  absl::flat_hash_map<Key, Queue> queues_;  // Without empty queues.
};

}  // namespace weft
