// Options of the sockets of connections, of those that a rank makes and of those that it accepts.
#pragma once

namespace weft::internal {

// Makes the connection send without delay, and end a minute and a half after its other host was cut off. A
// host that does not answer a connection is given up after half a minute.
void SetConnectionOptions(int descriptor);

}  // namespace weft::internal
