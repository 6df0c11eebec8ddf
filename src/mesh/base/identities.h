// Identities of a host and its namespaces, and random names.
#pragma once

#include <string>

namespace weft::internal {

// The boot of this host's kernel, without spaces: equal in the containers of one machine. Empty
// if /proc does not tell.
std::string BootId();
// The namespace of this process of a kind, such as "pid" or "net". Empty if /proc does not tell.
std::string NamespaceId(const std::string& kind);
// 128 random bits in 32 hexadecimal digits.
std::string RandomToken();

}  // namespace weft::internal
