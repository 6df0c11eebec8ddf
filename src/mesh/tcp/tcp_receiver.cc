#include "src/mesh/tcp/tcp_receiver.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sys/uio.h>

namespace weft::internal {
namespace {

// A connection with much data must not keep the caller from the others.
constexpr size_t kMaxBytesOfARead = size_t{1} << 20;

}  // namespace

// The rest of a body goes directly to its place. What follows it, mostly the next header, goes to the staging
// buffer. That is small: little of the next body has to be copied out of it.
bool TcpReceiver::Read(Client& client) {
  for (size_t total = 0; total < kMaxBytesOfARead;) {
    const size_t direct = part_ == Part::kBody && target_ != nullptr ? left_ : 0;
    const std::array<iovec, 2> places = {iovec{target_, direct}, iovec{staging_.data(), staging_.size()}};
    const ssize_t got = direct > 0 ? readv(socket_.get(), places.data(), 2)
                                   : read(socket_.get(), staging_.data(), staging_.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (got <= 0) {
      failure_ = got == 0 ? "its end was closed" : std::strerror(errno);
      return false;
    }
    const auto bytes = static_cast<size_t>(got);
    const size_t placed = std::min(bytes, direct);
    left_ -= placed;
    if (placed > 0) target_ += placed;
    if (placed > 0 && left_ == 0 && !FinishPart(client)) return false;
    if (!Parse(client, staging_.data(), bytes - placed)) return false;
    if (bytes < direct + staging_.size()) return true;
    total += bytes;
  }
  return true;
}

bool TcpReceiver::Parse(Client& client, const char* bytes, size_t count) {
  while (count > 0) {
    const size_t taken = std::min<uint64_t>(count, left_);
    if (target_ != nullptr) {
      std::memcpy(target_, bytes, taken);
      target_ += taken;
    }
    bytes += taken;
    count -= taken;
    left_ -= taken;
    if (left_ == 0 && !FinishPart(client)) return false;
  }
  return true;
}

bool TcpReceiver::FinishPart(Client& client) {
  if (part_ == Part::kGreeting) {
    if (!client.Accept(greeting_)) {
      failure_ = "it is of another job";
      return false;
    }
    peer_ = static_cast<int>(greeting_.rank);
  } else {
    if (part_ == Part::kHeader) {
      if (!StartBody(client)) return false;
    } else if (rest_ > 0) {
      SetPlace(client.Continue(peer_, header_));
    }
    if (left_ > 0) return true;
    client.End(peer_, header_);
  }
  part_ = Part::kHeader;
  target_ = reinterpret_cast<char*>(&header_);
  left_ = sizeof(header_);
  return true;
}

bool TcpReceiver::StartBody(Client& client) {
  part_ = Part::kBody;
  const absl::StatusOr<Client::Place> place = client.Begin(peer_, header_);
  if (!place.ok()) {
    failure_ = std::string(place.status().message());
    is_malformed_ = true;
    return false;
  }
  rest_ = header_.bytes;
  SetPlace(*place);
  return true;
}

void TcpReceiver::SetPlace(Client::Place place) {
  target_ = place.data;
  left_ = target_ == nullptr ? rest_ : std::min(place.bytes, rest_);
  rest_ -= left_;
}

}  // namespace weft::internal
