#include "src/mesh/base/identities.h"

#include <unistd.h>

#include <array>
#include <fstream>
#include <random>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

namespace weft::internal {

std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

std::string NamespaceId(const std::string& kind) {
  const std::string path = absl::StrCat("/proc/self/ns/", kind);
  std::array<char, 64> id = {};
  return readlink(path.c_str(), id.data(), id.size() - 1) > 0 ? id.data() : "";
}

std::string RandomToken() {
  std::random_device random;
  return absl::StrFormat("%08x%08x%08x%08x", random(), random(), random(), random());
}

}  // namespace weft::internal
