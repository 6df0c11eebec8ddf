#include "src/mesh/tcp/connection_options.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace weft::internal {
namespace {

constexpr int kSecondsUntilProbe = 30;
constexpr int kSecondsBetweenProbes = 10;
constexpr int kProbes = 6;

void SetOption(int descriptor, int level, int name, int value) {
  // An option that the kernel does not know changes speed or the time to notice a dead host, not results.
  static_cast<void>(setsockopt(descriptor, level, name, &value, sizeof(value)));
}

}  // namespace

void SetConnectionOptions(int descriptor) {
  SetOption(descriptor, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(descriptor, IPPROTO_TCP, TCP_SYNCNT, 4);
  SetOption(descriptor, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, kSecondsUntilProbe);
  SetOption(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, kSecondsBetweenProbes);
  SetOption(descriptor, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
}

}  // namespace weft::internal
