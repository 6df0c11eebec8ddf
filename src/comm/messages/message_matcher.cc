#include "src/comm/messages/message_matcher.h"

#include <algorithm>

namespace weft {
namespace {

bool Accepts(const OperationRecord& receive, int source) {
  return receive.message->peer == kAnySource || receive.message->peer == source;
}

}  // namespace

std::optional<MessageMatcher::Record> MessageMatcher::Announce(const Announcement& announcement) {
  const Key key{announcement.signal.channel, announcement.signal.tag};
  Queue& queue = queues_[key];
  const auto found = std::find_if(queue.posted.begin(), queue.posted.end(), [&](const Record& receive) {
    return Accepts(*receive, announcement.source);
  });
  if (found == queue.posted.end()) {
    queue.announced.push_back(announcement);
    return std::nullopt;
  }
  Record receive = std::move(*found);
  queue.posted.erase(found);
  if (queue.posted.empty() && queue.announced.empty()) queues_.erase(key);
  return receive;
}

std::optional<Announcement> MessageMatcher::Post(const Record& receive) {
  const Key key{receive->message->channel, receive->message->tag};
  Queue& queue = queues_[key];
  const auto found =
      std::find_if(queue.announced.begin(), queue.announced.end(),
                   [&](const Announcement& announced) { return Accepts(*receive, announced.source); });
  if (found == queue.announced.end()) {
    queue.posted.push_back(receive);
    return std::nullopt;
  }
  const Announcement announcement = *found;
  queue.announced.erase(found);
  if (queue.posted.empty() && queue.announced.empty()) queues_.erase(key);
  return announcement;
}

std::vector<MessageMatcher::Record> MessageMatcher::waiting() const {
  std::vector<Record> receives;
  for (const auto& [key, queue] : queues_)
    receives.insert(receives.end(), queue.posted.begin(), queue.posted.end());
  std::sort(receives.begin(), receives.end(),
            [](const Record& a, const Record& b) { return a->descriptor.sequence < b->descriptor.sequence; });
  return receives;
}

}  // namespace weft
