// The training data: files of text (bytes are tokens) or of token ids, seen as one sequence of tokens end to
// end.
//
// Nothing is loaded: a read takes its range straight from the files that hold it.
//
// Thread safety: const members may be called from several threads.
// Lifetime: files must keep their size while the corpus is used; a file that became shorter is an error at
// the read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

namespace weft {

// kUint16 and kUint32 are little-endian token ids (.bin and .u16; .u32); every other file name is text.
enum class TokenFormat : uint8_t { kBytes, kUint16, kUint32 };

class Corpus {
 public:
  struct Source {
    std::string name;     // The path, for messages.
    int64_t first_token;  // Of the whole corpus.
    int64_t tokens;
  };

  // `paths` are files or folders, in this order. A folder gives all files below it, sorted by path, without
  // hidden ones (also those in hidden folders); symbolic links are followed. Files of different formats
  // cannot be mixed. Errors: kNotFound, kPermissionDenied (names the path), kDataLoss (a token file of odd
  // size, mixed formats, no file in a folder, no token at all; a folder that contains itself through links).
  static absl::StatusOr<Corpus> Open(absl::Span<const std::string> paths);
  // A corpus over text in memory, which must outlive it.
  static Corpus FromText(std::string_view name, std::string_view text);

  int64_t tokens() const { return tokens_; }
  TokenFormat format() const { return format_; }
  const std::vector<Source>& sources() const { return sources_; }

  // Reads tokens [first, first + out.size()). REQUIRES: they lie in the corpus. Errors: kDataLoss (a token
  // that is not below `vocab_size`: names file, position and token; or a file became shorter), or that of the
  // read.
  absl::Status Read(int64_t first, int64_t vocab_size, absl::Span<int32_t> out) const;

  // Reads part `part` of `parts` of the corpus, and keeps nothing: whether all tokens are below `vocab_size`.
  // The parts together are the corpus, so that ranks can share the work. Errors as for Read.
  absl::Status CheckTokens(int64_t vocab_size, int part, int parts) const;

 private:
  Corpus(TokenFormat format, std::vector<Source> sources, std::string_view text);
  absl::Status ReadBytes(const Source& source, int64_t offset, absl::Span<char> out) const;

  TokenFormat format_;
  std::vector<Source> sources_;
  std::string_view text_;  // Used instead of files where it is not empty.
  int64_t tokens_ = 0;
};

}  // namespace weft
