#include "src/comm/links/node_link.h"

#include <iterator>

#include "src/comm/links/mailbox.h"
#include "weft/core/status.h"

namespace weft {

void NodeLink::SendMail(int peer, std::string_view bytes) {
  WEFT_CHECK(bytes.size() <= Mailbox::kMaxBytes, "a message to a rank of the node is too long");
  if (unsent_.contains(peer) || !WriteMail(peer, bytes)) unsent_[peer].emplace_back(bytes);
  Ring(peer);
}

bool NodeLink::FlushMail() {
  for (auto it = unsent_.begin(); it != unsent_.end();) {
    auto& [peer, mails] = *it;
    while (!mails.empty() && WriteMail(peer, mails.front())) mails.pop_front();
    Ring(peer);
    it = mails.empty() ? unsent_.erase(it) : std::next(it);
  }
  return HasUnsentMail();
}

}  // namespace weft
