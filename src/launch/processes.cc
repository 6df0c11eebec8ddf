#include "src/launch/processes.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

namespace weft::internal {
namespace {

namespace fs = std::filesystem;

// Empty, or what could be read, if the process ends meanwhile. An iterator over the file would then throw.
std::string ReadProcFile(pid_t pid, std::string_view name) {
  const std::ifstream file(absl::StrCat("/proc/", pid, "/", absl::string_view(name.data(), name.size())));
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The value of a line of /proc/PID/status; empty if there is no such line.
std::string StatusField(const std::string& status, absl::string_view field) {
  for (const absl::string_view line : absl::StrSplit(status, '\n')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(":\t", 1));
    if (parts.first == field) return std::string(parts.second);
  }
  return "";
}

bool IsZombie(pid_t pid) { return absl::StartsWith(StatusField(ReadProcFile(pid, "status"), "State"), "Z"); }

}  // namespace

std::vector<pid_t> ChildrenOf(pid_t pid) {
  std::vector<pid_t> children;
  std::error_code error;
  const fs::path threads = absl::StrCat("/proc/", pid, "/task");
  for (fs::directory_iterator thread(threads, error), end; !error && thread != end; thread.increment(error)) {
    std::ifstream file(thread->path() / "children");
    for (pid_t child = 0; file >> child;) children.push_back(child);
  }
  return children;
}

std::vector<pid_t> DescendantsOf(pid_t pid) {
  std::vector<pid_t> found;
  std::vector<pid_t> open = {pid};
  while (!open.empty()) {
    const pid_t parent = open.back();
    open.pop_back();
    for (const pid_t child : ChildrenOf(parent)) {
      open.push_back(child);
      if (!IsZombie(child)) found.push_back(child);
    }
  }
  return found;
}

bool HasVariable(pid_t pid, std::string_view name) {
  const std::string prefix = absl::StrCat(absl::string_view(name.data(), name.size()), "=");
  const std::string environment = ReadProcFile(pid, "environ");
  for (const absl::string_view variable : absl::StrSplit(environment, '\0')) {
    if (absl::StartsWith(variable, prefix)) return true;
  }
  return false;
}

std::string CommandLine(pid_t pid) {
  std::string words = ReadProcFile(pid, "cmdline");
  std::replace(words.begin(), words.end(), '\0', ' ');
  return words;
}

bool TakesSignal(pid_t pid, int signal) {
  const std::string status = ReadProcFile(pid, "status");
  const uint64_t bit = uint64_t{1} << (signal - 1);
  for (const char* field : {"SigBlk", "SigIgn", "SigCgt"}) {
    uint64_t mask = 0;
    if (absl::SimpleHexAtoi(StatusField(status, field), &mask) && (mask & bit) != 0) return true;
  }
  return false;
}

}  // namespace weft::internal
