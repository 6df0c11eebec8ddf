#include "src/launch/daemon_process.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/string_view.h>
#include <absl/strings/strip.h>
#include <absl/time/clock.h>

#include "src/launch/nonblocking_output.h"
#include "src/launch/processes.h"
#include "weft/core/status.h"

namespace weft::internal {
namespace {

using Strings = std::vector<std::string>;

// Time after SIGKILL in which a process should end. One that hangs in a system call of a dead disk or network
// file system may need longer; EndDescendants then gives up.
constexpr absl::Duration kKillDeadline = absl::Seconds(10);
constexpr absl::Duration kPollInterval = absl::Milliseconds(20);

// The path of the program; empty if there is none.
std::string FindProgram(const std::string& name) {
  if (absl::StrContains(name, '/')) return access(name.c_str(), X_OK) == 0 ? name : "";
  const char* path = std::getenv("PATH");
  for (const absl::string_view folder : absl::StrSplit(path == nullptr ? "/usr/bin:/bin" : path, ':')) {
    std::string candidate = absl::StrCat(folder, "/", name);
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return "";
}

// The environment of this process, with `variables` in place of its own values.
Strings Environment(const std::vector<std::pair<std::string, std::string>>& variables) {
  Strings result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string own = *entry;
    const std::string name = own.substr(0, own.find('='));
    bool replaced = false;
    for (const auto& [other, value] : variables) replaced = replaced || other == name;
    if (!replaced) result.push_back(own);
  }
  for (const auto& [name, value] : variables) result.push_back(absl::StrCat(name, "=", value));
  return result;
}

std::vector<char*> Pointers(Strings& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Runs in the new process, and returns only after an error. Makes calls that are safe after fork only.
void Execute(const char* program, char* const* arguments, char* const* environment,
             std::array<int, 2> outputs, pid_t parent) {
  setsid();
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) return;  // The parent ended before prctl.
  const int null = open("/dev/null", O_RDONLY);
  if (null < 0 || dup2(null, STDIN_FILENO) < 0) return;
  if (dup2(outputs[0], STDOUT_FILENO) < 0 || dup2(outputs[1], STDERR_FILENO) < 0) return;
  for (int signal = 1; signal < NSIG; ++signal) {
    // nohup ignores SIGHUP, and its programs must inherit that.
    if (signal != SIGHUP) std::signal(signal, SIG_DFL);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(program, arguments, environment);
}

absl::Status SystemError(const char* call, int error) {
  return absl::InternalError(
      absl::StrCat("cannot start mpirun or its daemon: ", call, ": ", std::strerror(error)));
}

}  // namespace

std::optional<std::string> AgentHost(const Strings& command, const std::string& folder) {
  const auto has_folder = [&](const std::string& word) { return absl::StrContains(word, folder); };
  if (std::none_of(command.begin(), command.end(), has_folder)) return std::nullopt;
  for (const std::string& word : command) {
    if (absl::string_view hosts = word; absl::ConsumePrefix(&hosts, "--nodelist=")) return std::string(hosts);
  }
  // The host stands before the remote command. mpirun lets some shells read a profile first, in brackets.
  const auto remote = std::find_if(command.begin(), command.end(),
                                   [&](const std::string& word) { return word == "(" || has_folder(word); });
  return remote == command.begin() ? *remote : *std::prev(remote);
}

absl::StatusOr<DaemonProcess> DaemonProcess::Start(
    const Strings& command, const std::vector<std::pair<std::string, std::string>>& variables,
    std::string folder, std::array<int, 2> outputs, const std::vector<pid_t>& inherited) {
  const std::string program = FindProgram(command.front());
  if (program.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no program '", command.front(),
                     "': install Open MPI (package openmpi-bin), or add its folder to "
                     "PATH"));
  }
  if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return SystemError("prctl", errno);
  Strings words = command;
  Strings environment = Environment(variables);
  const std::vector<char*> argv = Pointers(words);
  const std::vector<char*> envp = Pointers(environment);
  std::array<int, 2> pipe_ends = {};
  if (pipe2(pipe_ends.data(), O_CLOEXEC) != 0) return SystemError("pipe2", errno);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    Execute(program.c_str(), argv.data(), envp.data(), outputs, parent);
    const int error = errno;
    (void)!write(pipe_ends[1], &error, sizeof(error));
    _exit(EXIT_FAILURE);
  }
  const int fork_error = errno;
  close(pipe_ends[1]);
  int error = 0;
  const ssize_t bytes = pid < 0 ? 0 : read(pipe_ends[0], &error, sizeof(error));
  close(pipe_ends[0]);
  if (pid < 0) return SystemError("fork", fork_error);
  if (bytes > 0) {
    waitpid(pid, nullptr, 0);
    return SystemError(program.c_str(), error);
  }
  return DaemonProcess(pid, std::move(folder), inherited);
}

DaemonChildren DaemonProcess::Children() {
  DaemonChildren children;
  const Strings own = CommandWords(pid_);
  for (const pid_t child : ChildrenOf(pid_)) {
    const Strings command = CommandWords(child);
    if (HasVariable(child, "OMPI_COMM_WORLD_RANK") || (ranks_.contains(child) && !IsZombie(child))) {
      children.ranks.push_back(child);
    } else if (command != own) {  // Else the child has not executed its program yet.
      std::optional<std::string> host = AgentHost(command, folder_);
      if (host) children.agent_hosts.push_back(*std::move(host));
    }
  }
  ranks_ = {children.ranks.begin(), children.ranks.end()};
  return children;
}

// Daemons of other hosts open a connection to mpirun when they are ready, and keep it.
std::optional<size_t> DaemonProcess::ConnectedDaemons() const { return AcceptedConnections(pid_); }

void DaemonProcess::Signal(int signal) const {
  if (!wait_status_) kill(pid_, signal);
}

std::optional<int> DaemonProcess::Poll() {
  Reap();
  return wait_status_;
}

void DaemonProcess::Reap() {
  int status = 0;
  for (pid_t child = 0; (child = waitpid(-1, &status, WNOHANG)) > 0;) {
    if (child == pid_) wait_status_ = status;
    inherited_.erase(child);  // Another process may get its number.
  }
}

void DaemonProcess::EndDescendants(absl::Duration grace) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point kill_time = Clock::now() + absl::ToChronoNanoseconds(grace);
  const Clock::time_point end = kill_time + absl::ToChronoNanoseconds(kKillDeadline);
  for (;;) {
    Reap();
    // Not DescendantsOf: its walk misses a process whose parent ends meanwhile. As orphans become children of
    // this process, it has descendants only while it has a child.
    const std::vector<pid_t> children = ChildrenOf(getpid());
    if (std::all_of(children.begin(), children.end(), [&](pid_t c) { return inherited_.contains(c); }))
      return;
    const std::vector<pid_t> left = DescendantsOf(getpid(), inherited_);
    if (Clock::now() > end) {
      for (const pid_t pid : left) {
        PrintMessage(absl::StrCat("process ", pid, " has not ended ", absl::ToDoubleSeconds(kKillDeadline),
                                  " s after SIGKILL"));
      }
      return;
    }
    if (Clock::now() >= kill_time) {
      for (const pid_t pid : left) kill(pid, SIGKILL);
    }
    absl::SleepFor(kPollInterval);
  }
}

}  // namespace weft::internal
