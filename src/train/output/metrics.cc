#include "weft/train/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>
#include <sys/file.h>
#include <sys/stat.h>
#include <utility>

#include <absl/strings/str_cat.h>

#include "src/train/config/flag_error.h"
#include "src/train/files/file_io.h"
#include "src/train/files/json.h"
#include "weft/core/status.h"
#include "weft/core/write_all.h"

namespace weft {
namespace {

// It may be a file, which has the other lines of the run.
bool IsStandardOutput(const std::string& path) { return path == "/dev/stdout"; }

absl::Status LinkError(const std::string& path) {
  return absl::PermissionDeniedError(
      absl::StrCat("cannot write '", path, "': it is a link; name the file that it leads to"));
}

// Allows regular files and /dev/null.
absl::Status CheckKind(const struct stat& info, const std::string& path) {
  struct stat null_device {};
  const bool is_null =
      S_ISCHR(info.st_mode) && stat("/dev/null", &null_device) == 0 && info.st_rdev == null_device.st_rdev;
  if (is_null) return absl::OkStatus();
  return S_ISREG(info.st_mode)
             ? absl::OkStatus()
             : absl::DataLossError(absl::StrCat("cannot write '", path, "': it is not a file"));
}

// One run at a time writes to a file. A file system without locks lets both.
absl::Status Lock(int fd, const std::string& path) {
  if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return absl::OkStatus();
  return BadFlag("metrics", path, "another run writes to it: wait until it has ended, or name another file");
}

// An empty file, open for writing.
struct NewFile {
  std::string path;
  int fd;
};

// Creates a file with the first of the names "<path>.1", "<path>.2" and so on that does not exist yet.
absl::StatusOr<NewFile> CreateBeside(const std::string& path) {
  for (int number = 1;; ++number) {
    std::string beside = absl::StrCat(path, ".", number);
    const int fd = open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0) return NewFile{std::move(beside), fd};
    if (errno != EEXIST) return ErrnoStatus(errno, "write", beside);
  }
}

// Copies what `lines` still has to a new file beside `path`, and flushes it to the device. Returns its name.
absl::StatusOr<std::string> CopyBeside(std::ifstream& lines, const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(const NewFile copy, CreateBeside(path));
  std::string part(1 << 20, '\0');
  int error = 0;
  while (error == 0 &&
         (lines.read(part.data(), static_cast<std::streamsize>(part.size())), lines.gcount() > 0)) {
    if (!WriteAll(copy.fd, std::string_view(part).substr(0, static_cast<size_t>(lines.gcount()))))
      error = errno;
  }
  if (error == 0 && fsync(copy.fd) != 0) error = errno;
  if (close(copy.fd) != 0 && error == 0) error = errno;
  if (error == 0 && !lines.bad()) return copy.path;
  unlink(copy.path.c_str());
  return error != 0 ? ErrnoStatus(error, "write", copy.path) : ErrnoStatus(EIO, "read", path);
}

}  // namespace

std::string ToJson(const StepMetrics& metrics) {
  Json json = {{"step", metrics.step},
               {"loss", metrics.loss},
               {"grad_norm", metrics.grad_norm},
               {"lr", metrics.lr},
               {"tokens", metrics.tokens},
               {"tokens_seen", metrics.tokens_seen},
               {"tokens_per_s", metrics.tokens_per_s},
               {"tflops", metrics.tflops},
               {"step_ms", metrics.step_ms},
               {"exposed_comm_ms", metrics.exposed_comm_ms},
               {"bytes",
                {{"all_gather", metrics.bytes.all_gather},
                 {"reduce_scatter", metrics.bytes.reduce_scatter},
                 {"all_reduce", metrics.bytes.all_reduce},
                 {"context", metrics.bytes.context},
                 {"control", metrics.bytes.control},
                 {"optimizer", metrics.bytes.optimizer}}},
               {"wire_bytes", metrics.wire_bytes},
               {"wire_saved_bytes", metrics.wire_saved_bytes},
               {"cross_domain_bytes", metrics.cross_domain_bytes},
               {"copied_bytes", metrics.copied_bytes},
               {"peak_buffer_bytes", metrics.peak_buffer_bytes},
               {"peak_bytes",
                {{"images", metrics.peak_bytes.images},
                 {"gradients", metrics.peak_bytes.gradients},
                 {"shards", metrics.peak_bytes.shards},
                 {"context", metrics.peak_bytes.context},
                 {"scratch", metrics.peak_bytes.scratch}}},
               {"allocated_bytes", metrics.allocated_bytes},
               {"rss_bytes", metrics.rss_bytes},
               {"skipped_steps", metrics.skipped_steps}};
  if (metrics.loss_tokens) json["loss_tokens"] = *metrics.loss_tokens;
  if (metrics.loss_scale) {
    json["loss_scale"] = metrics.loss_scale->scale;
    json["skipped"] = metrics.loss_scale->skipped;
  }
  if (metrics.indexers) {
    json["indexer_loss"] = metrics.indexers->loss;
    json["indexer_grad_norm"] = metrics.indexers->grad_norm;
    json["attention_mass_selected"] = metrics.indexers->mass_selected;
  }
  if (metrics.eval_loss) {
    json["eval_loss"] = *metrics.eval_loss;
  }
  if (metrics.byte_inputs) json["byte_inputs"] = ParseJson(*metrics.byte_inputs);
  return JsonText(json);
}

absl::StatusOr<MetricsFile> MetricsFile::Create(const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(MetricsFile file, Open(path));
  struct stat info {};
  if (fstat(file.fd_, &info) != 0) return ErrnoStatus(errno, "write", path);
  if (!S_ISREG(info.st_mode) || IsStandardOutput(path) || info.st_size == 0) return file;
  return BadFlag("metrics", path,
                 absl::StrCat("has ", info.st_size, " bytes of an earlier run: move the file away, ",
                              "or name another one"));
}

absl::StatusOr<MetricsFile> MetricsFile::Continue(const std::string& path, int64_t step) {
  WEFT_ASSIGN_OR_RETURN(MetricsFile file, Open(path));
  struct stat info {};
  if (fstat(file.fd_, &info) != 0) return ErrnoStatus(errno, "write", path);
  if (!S_ISREG(info.st_mode) || IsStandardOutput(path)) return file;
  std::ifstream lines(path);
  if (!lines.is_open()) return ErrnoStatus(errno, "read", path);
  std::string line;
  off_t kept = 0;
  bool has_later = false;
  // A line without a newline ends the file: its write was interrupted.
  while (!has_later && std::getline(lines, line) && !lines.eof()) {
    const Json json = ParseJson(line);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) {
      return absl::DataLossError(absl::StrCat("cannot append to '", path,
                                              "': it has a line that is not one of weft's metrics; ",
                                              "move the file away, or name another one"));
    }
    has_later = json["step"].get<int64_t>() > step;
    if (!has_later) kept += static_cast<off_t>(line.size()) + 1;
  }
  if (lines.bad()) return ErrnoStatus(errno, "read", path);
  if (has_later) {
    lines.seekg(kept);
    WEFT_ASSIGN_OR_RETURN(file.later_lines_, CopyBeside(lines, path));
  }
  if (ftruncate(file.fd_, kept) != 0) return ErrnoStatus(errno, "write", path);
  return file;
}

absl::StatusOr<std::string> KeepOldMetrics(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0) return std::string();
  const int fd = open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return ErrnoStatus(errno, "write", path);
  const absl::Status unused = Lock(fd, path);
  close(fd);
  WEFT_RETURN_IF_ERROR(unused);
  // The rename replaces the new file alone. Not all file systems have links, or renames that replace nothing.
  const absl::StatusOr<NewFile> aside = CreateBeside(path);
  if (!aside.ok()) return Annotate(aside.status(), absl::StrCat("cannot rename '", path, "'"));
  close(aside->fd);
  if (std::rename(path.c_str(), aside->path.c_str()) == 0) return aside->path;
  const int error = errno;
  unlink(aside->path.c_str());
  return ErrnoStatus(error, "rename", path);
}

absl::StatusOr<MetricsFile> MetricsFile::Open(const std::string& path) {
  // /dev/stdout is a link, which O_NOFOLLOW would refuse.
  const bool is_stdout = IsStandardOutput(path);
  const int fd =
      is_stdout ? fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0)
                : open(path.c_str(),
                       O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666);
  if (fd < 0) {
    return errno == ELOOP ? LinkError(path) : ErrnoStatus(errno, "write", path);
  }
  MetricsFile file(fd, path);
  struct stat info {};
  if (fstat(fd, &info) != 0) {
    return ErrnoStatus(errno, "write", path);
  }
  if (!is_stdout) {
    WEFT_RETURN_IF_ERROR(CheckKind(info, path));
    if (S_ISREG(info.st_mode)) WEFT_RETURN_IF_ERROR(Lock(fd, path));
  }
  return file;
}

MetricsFile::MetricsFile(MetricsFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      path_(std::move(other.path_)),
      later_lines_(std::move(other.later_lines_)) {}

MetricsFile& MetricsFile::operator=(MetricsFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  std::swap(later_lines_, other.later_lines_);
  return *this;
}

MetricsFile::~MetricsFile() {
  if (fd_ >= 0) close(fd_);
}

absl::Status MetricsFile::Write(const StepMetrics& metrics) {
  const std::string line = ToJson(metrics) + "\n";
  struct stat before {};
  // A file of this run alone, which it has locked. Others may write to the standard output.
  const bool is_own = !IsStandardOutput(path_) && fstat(fd_, &before) == 0 && S_ISREG(before.st_mode);
  // One call for each line: with O_APPEND the system writes it as a whole.
  if (WriteAll(fd_, line)) return absl::OkStatus();
  absl::Status status = ErrnoStatus(errno, "write", path_);
  // Readers refuse a part of a line.
  if (is_own && ftruncate(fd_, before.st_size) != 0) return ErrnoStatus(errno, "shorten", path_);
  return status;
}

}  // namespace weft
