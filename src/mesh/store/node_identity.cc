#include "src/mesh/store/node_identity.h"

#include <unistd.h>

#include <array>
#include <fstream>

#include <absl/strings/str_cat.h>
#include <climits>

namespace weft::internal {
namespace {

std::string HostName() {
  std::array<char, HOST_NAME_MAX + 1> name = {};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

// Processes open each other's memory through /proc, where they must see each other's ids.
std::string ProcessNamespace() {
  std::array<char, 64> text = {};
  return readlink("/proc/self/ns/pid", text.data(), text.size() - 1) > 0 ? text.data() : "";
}

}  // namespace

std::string NodeIdentity() { return absl::StrCat(HostName(), " ", BootId(), " ", ProcessNamespace()); }

}  // namespace weft::internal
