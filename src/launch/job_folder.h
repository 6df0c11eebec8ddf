// Folder of one attempt for the files of Open MPI: its session folder, and the files behind its shared
// memory.
//
// Note [Folder of an attempt]
// Problem: mpirun and orted leave files in /tmp and /dev/shm if they are killed. Their names do not say which
//   run they belong to, so no other process can remove them safely.
// Rule: each attempt has a folder with a name of its own, the same on every host. mpirun and its daemons put
//   all files there. Each supervisor of mpirun or of a daemon holds a shared lock on the folder. The last
//   supervisor on a host to release the lock removes the folder.
// Why it suffices: the kernel releases the lock of a process that ends in any way. A folder without a lock
//   is therefore abandoned, and the next launch on that host removes it.
// Without the lock: two emulated hosts of one machine, or two host entries of one host, would remove files
//   that the other one uses.
#pragma once

#include <string>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

namespace weft::internal {

class JobFolder {
 public:
  // Creates a folder with a new name. Uses /dev/shm, whose files stay in memory; else the folder for
  // temporary files. Errors: kInternal (no folder can be created).
  static absl::StatusOr<JobFolder> Create();
  // Opens the folder, and creates it if it does not exist.
  static absl::StatusOr<JobFolder> Join(const std::string& path);
  JobFolder(JobFolder&& other) noexcept;
  JobFolder& operator=(JobFolder&& other) = delete;
  // Removes the folder, unless another process on this host holds it.
  ~JobFolder();

  const std::string& path() const { return path_; }

  // Removes abandoned folders of this user beside `path`.
  static void RemoveAbandoned(const std::string& path);

 private:
  JobFolder(int fd, std::string path);
  int fd_;
  std::string path_;
};

}  // namespace weft::internal
