// TCP connection of this host to itself, which measures what the network stack costs a core.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <absl/status/statusor.h>

namespace weft {

class LoopbackStream {
 public:
  // Errors: those of the system.
  static absl::StatusOr<std::unique_ptr<LoopbackStream>> Create();
  ~LoopbackStream();
  LoopbackStream(const LoopbackStream&) = delete;
  LoopbackStream& operator=(const LoopbackStream&) = delete;

  // Sends `kBytes` and receives them, on the calling thread. False if the connection fails.
  bool Move();
  static constexpr size_t kBytes = size_t{128} << 10;  // Less than a socket buffers.

 private:
  LoopbackStream(int sender, int receiver) : sender_(sender), receiver_(receiver), bytes_(kBytes) {}

  int sender_;
  int receiver_;
  std::vector<char> bytes_;
};

}  // namespace weft
