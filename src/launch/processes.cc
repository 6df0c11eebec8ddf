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
#include <absl/strings/string_view.h>
#include <absl/strings/strip.h>

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

// States of a socket in /proc/PID/net/tcp.
constexpr absl::string_view kEstablished = "01";
constexpr absl::string_view kListening = "0A";

struct TcpSocket {
  std::string local_port;
  std::string state;
};

// The inodes of the sockets that the process has open.
std::set<std::string> SocketInodes(pid_t pid) {
  std::set<std::string> inodes;
  std::error_code error;
  const fs::path descriptors = absl::StrCat("/proc/", pid, "/fd");
  for (fs::directory_iterator fd(descriptors, error), end; !error && fd != end; fd.increment(error)) {
    std::error_code closed;
    const std::string target = fs::read_symlink(fd->path(), closed);  // socket:[12345]
    absl::string_view inode = target;
    if (absl::ConsumePrefix(&inode, "socket:[") && absl::ConsumeSuffix(&inode, "]")) inodes.emplace(inode);
  }
  return inodes;
}

std::vector<TcpSocket> TcpSocketsOf(pid_t pid) {
  // Fields of a line of the tables. The local address ends with the port.
  constexpr size_t kLocalAddress = 1;
  constexpr size_t kState = 3;
  constexpr size_t kInode = 9;
  const std::set<std::string> inodes = SocketInodes(pid);
  std::vector<TcpSocket> sockets;
  for (const char* table : {"net/tcp", "net/tcp6"}) {
    const std::string text = ReadProcFile(pid, table);
    for (const absl::string_view line : absl::StrSplit(text, '\n')) {
      const std::vector<std::string> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
      if (fields.size() <= kInode || !inodes.contains(fields[kInode])) continue;
      const std::string& address = fields[kLocalAddress];
      sockets.push_back({address.substr(address.rfind(':') + 1), fields[kState]});
    }
  }
  return sockets;
}

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

std::vector<pid_t> DescendantsOf(pid_t pid, const std::set<pid_t>& excluded) {
  std::vector<pid_t> found;
  std::vector<pid_t> open = {pid};
  while (!open.empty()) {
    const pid_t parent = open.back();
    open.pop_back();
    for (const pid_t child : ChildrenOf(parent)) {
      if (excluded.contains(child)) continue;
      open.push_back(child);
      if (!IsZombie(child)) found.push_back(child);
    }
  }
  return found;
}

bool IsZombie(pid_t pid) { return absl::StartsWith(StatusField(ReadProcFile(pid, "status"), "State"), "Z"); }

bool HasVariable(pid_t pid, std::string_view name) {
  const std::string prefix = absl::StrCat(absl::string_view(name.data(), name.size()), "=");
  const std::string environment = ReadProcFile(pid, "environ");
  for (const absl::string_view variable : absl::StrSplit(environment, '\0')) {
    if (absl::StartsWith(variable, prefix)) return true;
  }
  return false;
}

std::vector<std::string> CommandWords(pid_t pid) {
  std::vector<std::string> words = absl::StrSplit(ReadProcFile(pid, "cmdline"), '\0');
  if (words.back().empty()) words.pop_back();  // Every word ends with a NUL byte.
  return words;
}

std::optional<size_t> AcceptedConnections(pid_t pid) {
  const std::vector<TcpSocket> sockets = TcpSocketsOf(pid);
  std::set<std::string> listening_ports;
  for (const TcpSocket& socket : sockets) {
    if (socket.state == kListening) listening_ports.insert(socket.local_port);
  }
  if (listening_ports.empty()) return std::nullopt;
  return static_cast<size_t>(std::count_if(sockets.begin(), sockets.end(), [&](const TcpSocket& socket) {
    return socket.state == kEstablished && listening_ports.contains(socket.local_port);
  }));
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
