// Interface of a key-value store that all ranks of a job reach, and a store in files.
//
// A store is what StoreBootstrap needs to let ranks find each other (store_bootstrap.h): torch's TCPStore
// behind this interface, or a folder.
//
// Thread safety: if bootstraps of several threads share a store, its members must be safe for concurrent
// calls. Otherwise one caller at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/time/time.h>
#include <absl/types/span.h>

namespace weft {

// Keys are non-empty and at most 200 bytes of letters, digits and "/._-". Values are any bytes.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;

  // Sets the value of `key` in one step: a reader gets the whole value, or none. Replaces an earlier value.
  // Errors: kInternal (the store failed; has its message).
  virtual absl::Status Set(std::string_view key, std::string_view value) = 0;

  // Waits until `key` is set, for at most `timeout`, and returns its value. A timeout of zero or less returns
  // at once.
  // Errors: kDeadlineExceeded (the key is not set), kInternal (the store failed; has its message). Every
  //   other error ends the wait of the bootstrap, too: a store may return kCancelled after an interrupt.
  virtual absl::StatusOr<std::string> Get(std::string_view key, absl::Duration timeout) = 0;

  // Removes `key`. OK if it is not set.
  // Errors: kInternal (the store failed; has its message).
  virtual absl::Status Delete(std::string_view key) = 0;

  // Waits until all `keys` are set, for at most `timeout`. Returns their values in the same order, with
  // nullopt for each key that is not set at the end. This version calls Get for each key: override it if the
  // store can answer several keys in one request.
  // Errors: those of Get, but for kDeadlineExceeded.
  virtual absl::StatusOr<std::vector<std::optional<std::string>>> GetAll(absl::Span<const std::string> keys,
                                                                         absl::Duration timeout);
};

// Opens the store in `folder`, which is created if it does not exist. Each key is a file, written under
// another name and then renamed. For launchers without another store: the processes of all ranks, and on
// several hosts a shared file system, must have the folder. Get polls the file: at first without sleeping,
// then at intervals that grow to a millisecond.
//
// Thread safety: any thread may call any member.
// Lifetime: the files stay. Remove the folder when all ranks have ended, as each job needs an empty one.
// Errors: kInvalidArgument (`folder` is empty or no folder), kInternal (it cannot be created).
absl::StatusOr<std::shared_ptr<KeyValueStore>> OpenFileStore(const std::string& folder);

}  // namespace weft
