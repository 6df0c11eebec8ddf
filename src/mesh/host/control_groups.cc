#include "src/mesh/host/control_groups.h"

#include <fstream>

#include <absl/strings/str_cat.h>

namespace weft::internal {

void VisitControlGroups(
    const std::string& membership, const std::string& root, const std::string& controller,
    absl::FunctionRef<void(ControlGroupVersion version, const std::string& folder)> visit) {
  const std::string root_of_1 = absl::StrCat(root, "/", controller);
  const auto visit_chain = [&](ControlGroupVersion version, const std::string& top, std::string path) {
    for (; path.size() > 1; path.erase(path.rfind('/'))) visit(version, top + path);
  };
  // A container may see its own group at the root, although the file has another path.
  visit(ControlGroupVersion::k2, root);
  visit(ControlGroupVersion::k1, root_of_1);
  std::ifstream file(membership);
  for (std::string line; std::getline(file, line);) {
    // "<number>:<controllers>:<path>"; version 2 has number 0 and no controllers.
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = absl::StrCat(",", line.substr(first + 1, second - first - 1), ",");
    const std::string path = line.substr(second + 1);
    if (path.empty() || path.front() != '/' || path.find("..") != std::string::npos) continue;
    if (controllers == ",,") visit_chain(ControlGroupVersion::k2, root, path);
    if (controllers.find(absl::StrCat(",", controller, ",")) != std::string::npos)
      visit_chain(ControlGroupVersion::k1, root_of_1, path);
  }
}

}  // namespace weft::internal
