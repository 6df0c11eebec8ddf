// Bytes on a connection of a link. The rank that has accepted it sends its name first. The one that has
// connected checks it, and sends a greeting, then messages, each with a header.
//
// All ranks of a job have the same byte order and the same version of weft.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

namespace weft::internal {

// The only bytes from the rank that has accepted the connection. See Note [Wrong hosts].
struct TcpName {
  static constexpr uint64_t kMagic = 0x656d'616e'6b6c'6674;
  uint64_t magic = kMagic;
  uint64_t name = 0;  // TcpEndpoint::PublicName of its link.

  friend bool operator==(const TcpName&, const TcpName&) = default;
};

// First bytes from the rank that has connected.
struct TcpGreeting {
  static constexpr uint64_t kMagic = 0x7767'6e69'6b6c'6674;
  uint64_t magic = kMagic;
  std::array<char, 32> token = {};  // TcpEndpoint::token of the receiving link.
  int64_t rank = 0;                 // The sender.
};

struct TcpHeader {
  enum class Kind : uint32_t { kData, kControl, kFarewell };
  Kind kind = Kind::kData;
  int32_t tag = 0;
  uint64_t bytes = 0;  // That follow the header.
};
static_assert(std::is_trivially_copyable_v<TcpName> && sizeof(TcpName) == 16);
static_assert(std::is_trivially_copyable_v<TcpGreeting> && sizeof(TcpGreeting) == 48);
static_assert(std::is_trivially_copyable_v<TcpHeader> && sizeof(TcpHeader) == 16);

}  // namespace weft::internal
