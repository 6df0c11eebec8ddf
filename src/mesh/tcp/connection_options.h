// Options of the sockets of connections, of those that a rank makes and of those that it accepts.
#pragma once

namespace weft::internal {

// Makes the connection send without delay, and an idle end notice after a minute and a half that its other
// host was cut off. The end that a rank accepts is always idle in this sense: it only receives. A host that
// does not answer a connection is given up after half a minute.
void SetConnectionOptions(int descriptor);

}  // namespace weft::internal
