#include "src/train/files/file_moves.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <sys/stat.h>
#include <utility>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include "src/train/files/file_io.h"
#include "src/train/files/folder_entries.h"
#include "weft/core/status.h"

namespace weft {
namespace {

using Names = std::vector<std::string>;

constexpr const char* kMoves = "weft-moves";  // In a backup: the staging folder, and the names of its files.
constexpr int64_t kMaxMovesBytes = 1 << 20;

// Renames that can be undone.
class Moves {
 public:
  absl::Status Move(const std::string& from, const std::string& to) {
    if (std::rename(from.c_str(), to.c_str()) != 0) return ErrnoStatus(errno, "write", to);
    done_.emplace_back(from, to);
    return absl::OkStatus();
  }
  void Undo() {
    for (; !done_.empty(); done_.pop_back())
      std::rename(done_.back().second.c_str(), done_.back().first.c_str());
  }

 private:
  std::vector<std::pair<std::string, std::string>> done_;
};

std::string Format(const MoveList& moves) {
  std::string text = absl::StrCat("staging ", moves.staging, "\n");
  for (const std::string& name : moves.old) absl::StrAppend(&text, "old ", name, "\n");
  for (const std::string& name : moves.fresh) absl::StrAppend(&text, "new ", name, "\n");
  return text;
}

absl::StatusOr<MoveList> ReadMoveList(const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, kMaxMovesBytes));
  MoveList moves;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(' ', 1));
    const std::string name(parts.second);
    if (parts.first == "staging") {
      moves.staging = name;
    } else if (parts.first == "old" || parts.first == "new") {
      (parts.first == "old" ? moves.old : moves.fresh).push_back(name);
    } else {
      return absl::DataLossError(absl::StrCat("'", path, "' is not a list of moves"));
    }
  }
  if (moves.staging.empty() || moves.fresh.empty())
    return absl::DataLossError(absl::StrCat("'", path, "' is not a list of moves"));
  return moves;
}

absl::Status WriteNewFile(const std::string& path, const std::string& text) {
  WEFT_ASSIGN_OR_RETURN(File file, File::CreateNew(path));
  WEFT_RETURN_IF_ERROR(file.WriteAt(0, text.data(), text.size()));
  return file.Close();
}

// Renames the backup before its removal: a backup that is removed in part must not be restored.
void RemoveBackup(const std::string& folder, const std::string& backup) {
  const std::string removed = InFolder(folder, absl::StrCat(kStagingPrefix, UniqueSuffix()));
  if (std::rename(backup.c_str(), removed.c_str()) == 0) RemoveTree(removed);
}

}  // namespace

absl::Status MoveOrExchange(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  if (errno != ENOTEMPTY && errno != EEXIST) return ErrnoStatus(errno, "write", to);
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return absl::OkStatus();
  const int error = errno;
  const absl::Status status = ErrnoStatus(error, "replace", to);
  const bool can_exchange = error != EINVAL && error != ENOSYS && error != EOPNOTSUPP;
  return can_exchange ? status : absl::UnimplementedError(status.message());
}

absl::StatusOr<std::vector<std::string>> LastingNamesIn(const std::string& folder) {
  WEFT_ASSIGN_OR_RETURN(Names names, NamesIn(folder));
  std::erase_if(names, [](const std::string& name) {
    return absl::StartsWith(name, kStagingPrefix) || absl::StartsWith(name, kBackupPrefix);
  });
  return names;
}

absl::Status MoveWithBackup(const std::string& folder, const MoveList& moves) {
  const std::string backup = InFolder(folder, absl::StrCat(kBackupPrefix, UniqueSuffix()));
  if (mkdir(backup.c_str(), 0777) != 0) return ErrnoStatus(errno, "write to the folder", folder);
  if (absl::Status listed = WriteNewFile(InFolder(backup, kMoves), Format(moves)); !listed.ok()) {
    RemoveTree(backup);
    return listed;
  }
  Moves done;
  const auto move_all = [&]() -> absl::Status {
    for (const std::string& name : moves.old) {
      WEFT_RETURN_IF_ERROR(done.Move(InFolder(folder, name), InFolder(backup, name)));
    }
    for (const std::string& name : moves.fresh) {
      WEFT_RETURN_IF_ERROR(done.Move(InFolder(moves.staging, name), InFolder(folder, name)));
    }
    return absl::OkStatus();
  };
  absl::Status status = move_all();
  if (status.ok()) {
    RemoveBackup(folder, backup);
  } else {
    done.Undo();
    // Keeps what could not be moved back.
    if (LastingNamesIn(backup).value_or(Names{}) == Names{kMoves}) RemoveTree(backup);
  }
  return status;
}

absl::StatusOr<bool> RestoreBackup(const std::string& folder, const std::string& backup) {
  WEFT_ASSIGN_OR_RETURN(Names kept, LastingNamesIn(backup));
  std::erase(kept, kMoves);
  const absl::StatusOr<MoveList> listed = ReadMoveList(InFolder(backup, kMoves));
  if (!listed.ok() && kept.empty()) {  // The run was killed before the first move.
    RemoveBackup(folder, backup);
    return false;
  }
  WEFT_RETURN_IF_ERROR(listed.status());
  const MoveList& moves = *listed;
  // Also false if an old file of this name is still in the folder.
  const auto has_arrived = [&](const std::string& name) {
    const bool was_there = std::find(moves.old.begin(), moves.old.end(), name) != moves.old.end();
    return Exists(InFolder(folder, name)) && !Exists(InFolder(moves.staging, name)) &&
           (!was_there || Exists(InFolder(backup, name)));
  };
  const bool complete = has_arrived(moves.fresh.back());
  if (!complete) {
    for (const std::string& name : moves.fresh) {
      if (has_arrived(name)) unlink(InFolder(folder, name).c_str());
    }
    Moves back;
    for (const std::string& name : kept) {
      WEFT_RETURN_IF_ERROR(back.Move(InFolder(backup, name), InFolder(folder, name)));
    }
  }
  RemoveBackup(folder, backup);
  return !complete && !kept.empty();
}

}  // namespace weft
