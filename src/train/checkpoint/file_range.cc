#include "src/train/checkpoint/file_range.h"

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>

namespace weft {
namespace {

constexpr int64_t kElementBytes = sizeof(float);

// Appends one run in parts of at most kMaxRangeSpan.
void AppendRun(int64_t offset, int64_t bytes, std::vector<FileRange>& ranges) {
  for (int64_t done = 0; done < bytes; done += kMaxRangeSpan) {
    ranges.push_back({.offset = offset + done, .run_bytes = std::min(kMaxRangeSpan, bytes - done)});
  }
}

// True if a file of `file_bytes` can have the range. No intermediate value overflows.
bool IsPossible(const FileRange& range, int64_t file_bytes) {
  if (range.offset < 0 || range.offset > file_bytes || range.run_bytes <= 0 || range.runs <= 0) return false;
  const int64_t rest = file_bytes - range.offset;
  if (range.run_bytes > rest) return false;
  if (range.runs == 1) return range.stride == 0 && range.run_bytes <= kMaxRangeSpan;
  if (range.stride < range.run_bytes || range.stride > rest) return false;
  return range.runs - 1 <= (std::min(rest, kMaxRangeSpan) - range.run_bytes) / range.stride;
}

}  // namespace

std::vector<FileRange> CutIntoRanges(const ShardPiece& piece, int64_t offset) {
  std::vector<FileRange> ranges;
  const int64_t run_bytes = piece.run_length * kElementBytes;
  const int64_t stride = piece.run_stride * kElementBytes;
  const int64_t first = offset + piece.start * kElementBytes;
  const int64_t max_runs =
      piece.runs > 1 && run_bytes < kMaxRangeSpan ? (kMaxRangeSpan - run_bytes) / stride + 1 : 1;
  for (int64_t run = 0; run < piece.runs && run_bytes > 0; run += max_runs) {
    const int64_t runs = std::min(max_runs, piece.runs - run);
    if (runs == 1) {
      AppendRun(first + run * stride, run_bytes, ranges);
    } else {
      ranges.push_back(
          {.offset = first + run * stride, .run_bytes = run_bytes, .runs = runs, .stride = stride});
    }
  }
  return ranges;
}

void ForEachOverlap(const FileRange& range, int64_t begin, int64_t end,
                    absl::FunctionRef<void(int64_t file_offset, int64_t range_offset, int64_t bytes)> visit) {
  // The first run that ends after `begin`.
  int64_t run = 0;
  if (range.runs > 1 && begin > range.offset)
    run = std::min((begin - range.offset) / range.stride, range.runs - 1);
  for (; run < range.runs; ++run) {
    const int64_t start = range.offset + run * range.stride;
    if (start >= end) return;
    const int64_t from = std::max(start, begin);
    const int64_t to = std::min(start + range.run_bytes, end);
    if (from < to) visit(from, run * range.run_bytes + from - start, to - from);
  }
}

absl::Status CheckCoverage(absl::Span<const FileRange> ranges, int64_t file_bytes) {
  std::vector<std::pair<int64_t, int64_t>> runs;  // Begin and end.
  int64_t total = 0;
  for (const FileRange& range : ranges) {
    if (!IsPossible(range, file_bytes)) {
      return absl::OutOfRangeError(
          absl::StrCat("a range at byte ", range.offset, " cannot lie in a file of ", file_bytes, " bytes"));
    }
    // Ranges without overlaps have at most the file's bytes. This bounds the memory for runs.
    total += range.bytes();
    if (total > file_bytes) return absl::AlreadyExistsError("ranges have more bytes than the file");
    for (int64_t run = 0; run < range.runs; ++run) {
      const int64_t begin = range.offset + run * range.stride;
      runs.emplace_back(begin, begin + range.run_bytes);
    }
  }
  std::sort(runs.begin(), runs.end());
  int64_t covered = 0;
  for (const auto& [begin, end] : runs) {
    if (begin > covered) return absl::NotFoundError(absl::StrCat("no range has byte ", covered));
    if (begin < covered) return absl::AlreadyExistsError(absl::StrCat("two ranges have byte ", begin));
    covered = end;
  }
  return covered == file_bytes ? absl::OkStatus()
                               : absl::NotFoundError(absl::StrCat("no range has byte ", covered));
}

}  // namespace weft
