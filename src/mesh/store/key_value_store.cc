#include "weft/mesh/key_value_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <sys/stat.h>
#include <utility>

#include "src/mesh/base/backoff.h"
#include "src/mesh/base/deadline.h"
#include "src/mesh/base/file_handle.h"
#include "weft/core/status.h"
#include "weft/core/write_all.h"

namespace weft {
namespace {

using internal::Backoff;
using internal::FileHandle;

absl::Status SystemError(std::string_view what, const std::string& path, int error) {
  return absl::InternalError(absl::StrCat("cannot ", ToAbsl(what), " ", path, ": ", std::strerror(error)));
}

// Name of a key's file: '/' becomes '+', which no key contains.
std::string FileName(std::string_view key) {
  std::string name(key);
  std::replace(name.begin(), name.end(), '/', '+');
  return name;
}

absl::StatusOr<std::string> ReadAll(const FileHandle& file, const std::string& path) {
  std::string bytes;
  std::string block(size_t{64} << 10, '\0');
  while (true) {
    const ssize_t got = read(file.get(), block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError("read", path, errno);
    if (got == 0) return bytes;
    bytes.append(block, 0, static_cast<size_t>(got));
  }
}

class FileStore final : public KeyValueStore {
 public:
  explicit FileStore(std::string folder) : folder_(std::move(folder)) {}

  absl::Status Set(std::string_view key, std::string_view value) override;
  absl::StatusOr<std::string> Get(std::string_view key, absl::Duration timeout) override;
  absl::Status Delete(std::string_view key) override;

 private:
  std::string PathOf(std::string_view key) const { return absl::StrCat(folder_, "/", FileName(key)); }
  // The value of a key; nullopt if it is not set.
  absl::StatusOr<std::optional<std::string>> Read(std::string_view key) const;

  const std::string folder_;
  std::atomic<uint64_t> writes_{0};
};

absl::Status FileStore::Set(std::string_view key, std::string_view value) {
  const std::string path = PathOf(key);
  // No other writer has this name: hosts that share the folder may have equal process ids, but each key has
  // one writer.
  const std::string draft = absl::StrCat(path, "~", getpid(), "~", writes_.fetch_add(1));
  const auto fail = [&](std::string_view action) {
    const int error = errno;
    unlink(draft.c_str());
    return SystemError(action, draft, error);
  };
  FileHandle file(open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file.is_open()) return SystemError("create", draft, errno);
  if (!WriteAll(file.get(), value)) return fail("write");
  if (!file.Close()) return fail("write");  // A network file system may report here that the disk is full.
  if (std::rename(draft.c_str(), path.c_str()) != 0) return fail("rename");
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::string>> FileStore::Read(std::string_view key) const {
  // Opening the folder makes a network file system look for new files in it.
  const FileHandle folder(open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.is_open()) return SystemError("open", folder_, errno);
  const FileHandle file(openat(folder.get(), FileName(key).c_str(), O_RDONLY | O_CLOEXEC));
  if (file.is_open()) return ReadAll(file, PathOf(key));
  if (errno == ENOENT) return std::optional<std::string>();
  return SystemError("open", PathOf(key), errno);
}

absl::StatusOr<std::string> FileStore::Get(std::string_view key, absl::Duration timeout) {
  const auto deadline = internal::DeadlineAfter(timeout);
  Backoff backoff;
  while (true) {
    WEFT_ASSIGN_OR_RETURN(std::optional<std::string> value, Read(key));
    if (value) return *std::move(value);
    if (std::chrono::steady_clock::now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(PathOf(key), " did not appear within ", internal::TimeoutText(timeout)));
    }
    backoff.Pause();
  }
}

absl::Status FileStore::Delete(std::string_view key) {
  if (unlink(PathOf(key).c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return SystemError("remove", PathOf(key), errno);
}

}  // namespace

absl::StatusOr<std::vector<std::optional<std::string>>> KeyValueStore::GetAll(
    absl::Span<const std::string> keys, absl::Duration timeout) {
  const auto deadline = internal::DeadlineAfter(timeout);
  std::vector<std::optional<std::string>> values;
  values.reserve(keys.size());
  for (const std::string& key : keys) {
    const auto left = absl::FromChrono(deadline - std::chrono::steady_clock::now());
    absl::StatusOr<std::string> value = Get(key, std::max(left, absl::ZeroDuration()));
    if (!value.ok() && !absl::IsDeadlineExceeded(value.status())) return value.status();
    values.push_back(value.ok() ? std::optional(*std::move(value)) : std::nullopt);
  }
  return values;
}

absl::StatusOr<std::shared_ptr<KeyValueStore>> OpenFileStore(const std::string& folder) {
  if (folder.empty()) return absl::InvalidArgumentError("a file store needs a folder; its name is empty");
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return SystemError("create", folder, errno);
  struct stat info = {};
  if (stat(folder.c_str(), &info) != 0) return SystemError("open", folder, errno);
  if (!S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(folder, " is no folder: a file store needs one"));
  }
  return std::make_shared<FileStore>(folder);
}

}  // namespace weft
