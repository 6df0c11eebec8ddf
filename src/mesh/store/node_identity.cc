#include "src/mesh/store/node_identity.h"

#include <unistd.h>

#include <array>

#include <absl/strings/str_cat.h>
#include <climits>

#include "src/mesh/base/identities.h"

namespace weft::internal {
namespace {

std::string HostName() {
  std::array<char, HOST_NAME_MAX + 1> name = {};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

}  // namespace

// Processes open each other's memory through /proc, where they must see each other's ids.
std::string NodeIdentity() { return absl::StrCat(HostName(), " ", BootId(), " ", NamespaceId("pid")); }

}  // namespace weft::internal
