// Training data: files of text (each byte is a token) or of token ids, read as one concatenated token stream.
//
// The corpus keeps no data in memory. Each read takes its range from the files, some of which stay open.
//
// Thread safety: const members may be called from several threads.
// Lifetime: files must keep their size while the corpus is used. Reading a file that became shorter fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <absl/functional/function_ref.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

namespace weft {

class OpenFiles;

// Format of a data file, by its name: kUint16 (.bin, .u16) and kUint32 (.u32) are little-endian token ids;
// every other file is text.
enum class TokenFormat : uint8_t { kBytes, kUint16, kUint32 };

class Corpus {
 public:
  struct Source {
    std::string name;     // The path of the file.
    int64_t first_token;  // Position of the file's first token in the corpus.
    int64_t tokens;
  };

  // Opens files and folders, in this order. A folder stands for all files below it, sorted by path; hidden
  // files and folders are skipped, and entries named kDefaultDumpFolder. Symbolic links are followed. All
  // files must have one format.
  // Errors: kNotFound, kPermissionDenied, kUnavailable (names the path); kDataLoss (a token file whose size
  //   is not a multiple of the token size, mixed formats, a folder without files, no tokens, a folder that
  //   contains itself).
  // `with_loss_mask`: each file has a mask beside it, named FILE.mask, of one byte for each token: 1 if the
  //   token has a loss where it is a target, 0 if not. Masks are no files of the data. Errors: kNotFound (a
  //   file has no mask), kDataLoss (a mask has another size, or its file is not in the data). Without it, a
  //   mask is an error too (kInvalidArgument): it would be ignored.
  static absl::StatusOr<Corpus> Open(absl::Span<const std::string> paths, bool with_loss_mask = false);
  // A corpus over text in memory. Lifetime: the text must outlive the corpus.
  static Corpus FromText(std::string_view name, std::string_view text);

  int64_t tokens() const { return tokens_; }
  TokenFormat format() const { return format_; }
  const std::vector<Source>& sources() const { return sources_; }
  bool has_loss_mask() const { return has_loss_mask_; }

  // Reads tokens [first, first + out.size()). REQUIRES: the range lies in the corpus.
  // Errors: kDataLoss (a token is not below `vocab_size`: names file, position and token; a file became
  //   shorter), kUnavailable (the read failed), kNotFound, kPermissionDenied (a file can no longer be
  //   opened).
  absl::Status Read(int64_t first, int64_t vocab_size, absl::Span<int32_t> out) const;

  // Reads the mask of tokens [first, first + out.size()): 1 if a token has a loss, 0 if not. REQUIRES:
  // has_loss_mask(), and the range lies in the corpus.
  // Errors: kDataLoss (another byte than 0 and 1: names file and position), and those of Read.
  absl::Status ReadLossMask(int64_t first, absl::Span<uint8_t> out) const;

  // Checks that all tokens of part `part` of `parts` are below `vocab_size`. The parts together are the
  // corpus, so ranks can share the work. Calls `is_stopped` before each read of some 100 KB. Errors: those of
  // Read; kCancelled (is_stopped returned true).
  absl::Status CheckTokens(
      int64_t vocab_size, int part, int parts,
      absl::FunctionRef<bool()> is_stopped = [] { return false; }) const;
  // Bytes that CheckTokens reads in all parts: 0 if every token of the format is below `vocab_size`.
  int64_t BytesToCheck(int64_t vocab_size) const;

  // Checks that the mask of part `part` of `parts` has bytes 0 and 1 only. True if some token of the part has
  // a loss and can be a target, which the first one of the corpus cannot. Calls `is_stopped` as CheckTokens
  // does. REQUIRES: has_loss_mask(). Errors: those of ReadLossMask; kCancelled (is_stopped returned true).
  absl::StatusOr<bool> CheckLossMask(int part, int parts, absl::FunctionRef<bool()> is_stopped) const;
  // The error of masks in which no such token has a loss: kDataLoss (names the mask).
  absl::Status NoLossError() const;

 private:
  Corpus(TokenFormat format, std::vector<Source> sources, std::string_view text);
  absl::Status ReadFile(const std::string& path, int64_t offset, void* out, size_t bytes) const;
  // Calls `read` for the part [start, start + count) of each file in [first, first + count) of the corpus.
  absl::Status ForEachPart(
      int64_t first, int64_t count,
      absl::FunctionRef<absl::Status(const Source& source, int64_t start, int64_t count)> read) const;
  absl::Status ReadBytes(const Source& source, int64_t offset, absl::Span<char> out) const;

  TokenFormat format_;
  std::vector<Source> sources_;
  std::string_view text_;  // The text of FromText. Empty: the data are in the files.
  int64_t tokens_ = 0;
  bool has_loss_mask_ = false;
  std::shared_ptr<OpenFiles> files_;  // Shared by copies.
};

}  // namespace weft
