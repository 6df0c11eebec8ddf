#include "weft/train/corpus.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>
#include <sys/stat.h>
#include <utility>

#include <absl/container/flat_hash_set.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "src/train/data/data_files.h"
#include "src/train/data/open_files.h"
#include "src/train/files/file_io.h"
#include "weft/core/status.h"

namespace weft {
namespace {

static_assert(std::endian::native == std::endian::little,
              "token files are little-endian and read as they are");

// Upper limit of a corpus. Its product with a number of ranks does not overflow.
constexpr int64_t kMaxTokens = int64_t{1} << 42;
constexpr int64_t kReadTokens = 65'536;  // Tokens per read of a pass over the data.

TokenFormat FormatOf(const std::string& path) {
  if (absl::EndsWith(path, ".bin") || absl::EndsWith(path, ".u16")) {
    return TokenFormat::kUint16;
  }
  return absl::EndsWith(path, ".u32") ? TokenFormat::kUint32 : TokenFormat::kBytes;
}

const char* TokenFormatName(TokenFormat format) {
  switch (format) {
    case TokenFormat::kBytes:
      return "text";
    case TokenFormat::kUint16:
      return "16-bit tokens";
    case TokenFormat::kUint32:
      return "32-bit tokens";
  }
  return "?";
}

int64_t TokenBytes(TokenFormat format) {
  switch (format) {
    case TokenFormat::kBytes:
      return 1;
    case TokenFormat::kUint16:
      return 2;
    case TokenFormat::kUint32:
      return 4;
  }
  return 1;
}

absl::StatusOr<int64_t> CountTokens(const std::string& path, TokenFormat format) {
  WEFT_ASSIGN_OR_RETURN(const File file, File::OpenForReading(path));
  WEFT_ASSIGN_OR_RETURN(const int64_t bytes, file.Size());
  const int64_t width = TokenBytes(format);
  if (bytes % width != 0) {
    return absl::DataLossError(absl::StrCat("'", path, "' has ", bytes, " bytes, which is not a multiple of ",
                                            width, ": it is truncated, or not a file of ",
                                            TokenFormatName(format)));
  }
  return bytes / width;
}

// Removes the masks from `files`. Errors: kDataLoss (a mask whose data file is not in `files`: it would be
// read as text).
absl::Status RemoveMasks(std::vector<std::string>& files) {
  const absl::flat_hash_set<std::string> all(files.begin(), files.end());
  const auto is_mask = [](absl::string_view file) { return absl::EndsWith(file, kMaskSuffix); };
  for (const std::string& file : files) {
    if (!is_mask(file)) continue;
    const std::string masked = file.substr(0, file.size() - std::strlen(kMaskSuffix));
    if (all.contains(masked)) continue;
    return absl::DataLossError(
        absl::StrCat("'", file, "' is the mask of '", masked,
                     "', which is not in the data: remove it, or give it another name"));
  }
  files.erase(std::remove_if(files.begin(), files.end(), is_mask), files.end());
  return absl::OkStatus();
}

// A mask that cannot be opened, or a link that leads nowhere, counts too: the user meant it to be one.
absl::Status CheckHasNoMask(const std::string& path) {
  const std::string mask = MaskOf(path);
  struct stat info {};
  if (lstat(mask.c_str(), &info) != 0) {
    const bool is_absent = errno == ENOENT || errno == ENAMETOOLONG;
    return is_absent ? absl::OkStatus() : ErrnoStatus(errno, "look for", mask);
  }
  if (S_ISDIR(info.st_mode)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", mask, "' says which tokens have a loss: give --loss-mask true, or move it away"));
}

// Checks that the mask of a data file is there if it is wanted, and only then.
absl::Status CheckMask(const std::string& path, int64_t tokens, bool wanted) {
  if (!wanted) return CheckHasNoMask(path);
  WEFT_ASSIGN_OR_RETURN(const File file, File::OpenForReading(MaskOf(path)));
  WEFT_ASSIGN_OR_RETURN(const int64_t bytes, file.Size());
  if (bytes == tokens) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("'", MaskOf(path), "' has ", bytes, " bytes, but '", path, "' has ",
                                          tokens, " tokens: a mask has one byte for each token"));
}

// Converts `raw` to token ids. Returns the index of the first one that is not below `vocab_size`, or
// out.size().
template <typename T>
size_t Widen(const char* raw, int64_t vocab_size, absl::Span<int32_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    T token;
    std::memcpy(&token, raw + i * sizeof(T), sizeof(T));
    if (static_cast<int64_t>(token) >= vocab_size) {
      return i;
    }
    out[i] = static_cast<int32_t>(token);
  }
  return out.size();
}

size_t WidenTokens(TokenFormat format, const char* raw, int64_t vocab_size, absl::Span<int32_t> out) {
  switch (format) {
    case TokenFormat::kBytes:
      return Widen<uint8_t>(raw, vocab_size, out);
    case TokenFormat::kUint16:
      return Widen<uint16_t>(raw, vocab_size, out);
    case TokenFormat::kUint32:
      return Widen<uint32_t>(raw, vocab_size, out);
  }
  return 0;
}

// Calls `read` for ranges of at most kReadTokens that together are part `part` of `parts` of the tokens.
// `what` names what it reads.
absl::Status ForEachRead(int64_t tokens, int part, int parts, const char* what,
                         absl::FunctionRef<bool()> is_stopped,
                         absl::FunctionRef<absl::Status(int64_t first, size_t count)> read) {
  const int64_t end = tokens * (part + 1) / parts;
  for (int64_t first = tokens * part / parts; first < end; first += kReadTokens) {
    if (is_stopped()) return absl::CancelledError(absl::StrCat("stopped before all ", what, " were checked"));
    WEFT_RETURN_IF_ERROR(read(first, static_cast<size_t>(std::min(kReadTokens, end - first))));
  }
  return absl::OkStatus();
}

uint32_t TokenAt(const char* raw, int64_t width) {
  uint32_t token = 0;
  std::memcpy(&token, raw, static_cast<size_t>(width));
  return token;
}

}  // namespace

Corpus::Corpus(TokenFormat format, std::vector<Source> sources, std::string_view text)
    : format_(format), sources_(std::move(sources)), text_(text), files_(std::make_shared<OpenFiles>()) {
  for (Source& source : sources_) {
    source.first_token = tokens_;
    tokens_ += source.tokens;
  }
}

absl::StatusOr<Corpus> Corpus::Open(absl::Span<const std::string> paths, bool with_loss_mask) {
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> files, ExpandDataPaths(paths));
  WEFT_RETURN_IF_ERROR(RemoveMasks(files));
  const TokenFormat format = files.empty() ? TokenFormat::kBytes : FormatOf(files.front());
  std::vector<Source> sources;
  int64_t total = 0;
  for (const std::string& file : files) {
    if (FormatOf(file) != format) {
      return absl::DataLossError(absl::StrCat("'", files.front(), "' is ", TokenFormatName(format), ", but '",
                                              file, "' is ", TokenFormatName(FormatOf(file)),
                                              ": give files of one format"));
    }
    WEFT_ASSIGN_OR_RETURN(const int64_t tokens, CountTokens(file, format));
    WEFT_RETURN_IF_ERROR(CheckMask(file, tokens, with_loss_mask));
    if (tokens > kMaxTokens - total) {
      return absl::DataLossError(
          absl::StrCat("the data has more than ", kMaxTokens, " tokens: is '", file, "' a sparse file?"));
    }
    total += tokens;
    sources.push_back({file, 0, tokens});
  }
  Corpus corpus(format, std::move(sources), {});
  corpus.has_loss_mask_ = with_loss_mask;
  if (corpus.tokens() == 0) {
    return absl::DataLossError(absl::StrCat(
        "the data is empty: ",
        files.empty() ? "no path was given" : absl::StrCat("'", files.front(), "' has no tokens")));
  }
  return corpus;
}

Corpus Corpus::FromText(std::string_view name, std::string_view text) {
  return {TokenFormat::kBytes, {{std::string(name), 0, static_cast<int64_t>(text.size())}}, text};
}

absl::Status Corpus::ReadBytes(const Source& source, int64_t offset, absl::Span<char> out) const {
  if (!text_.empty()) {
    std::copy_n(text_.begin() + offset, out.size(), out.begin());
    return absl::OkStatus();
  }
  return ReadFile(source.name, offset, out.data(), out.size());
}

absl::Status Corpus::ReadFile(const std::string& path, int64_t offset, void* out, size_t bytes) const {
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<const File> file, files_->Open(path));
  return file->ReadAt(offset, out, bytes);
}

absl::Status Corpus::ForEachPart(
    int64_t first, int64_t count,
    absl::FunctionRef<absl::Status(const Source& source, int64_t start, int64_t count)> read) const {
  WEFT_CHECK(first >= 0 && first + count <= tokens_, "the read lies outside the corpus");
  auto source = std::upper_bound(sources_.begin(), sources_.end(), first,
                                 [](int64_t token, const Source& s) { return token < s.first_token; });
  for (--source; count > 0; ++source) {
    const int64_t start = first - source->first_token;
    const int64_t part = std::min(source->tokens - start, count);
    WEFT_RETURN_IF_ERROR(read(*source, start, part));
    first += part;
    count -= part;
  }
  return absl::OkStatus();
}

absl::Status Corpus::Read(int64_t first, int64_t vocab_size, absl::Span<int32_t> out) const {
  const int64_t width = TokenBytes(format_);
  std::vector<char> raw;
  const auto read = [&](const Source& source, int64_t start, int64_t count) -> absl::Status {
    raw.resize(static_cast<size_t>(count * width));
    WEFT_RETURN_IF_ERROR(ReadBytes(source, start * width, absl::MakeSpan(raw)));
    const absl::Span<int32_t> part = out.subspan(0, static_cast<size_t>(count));
    if (const size_t good = WidenTokens(format_, raw.data(), vocab_size, part); good != part.size()) {
      return absl::DataLossError(absl::StrCat(
          "'", source.name, "' has token ", TokenAt(raw.data() + static_cast<int64_t>(good) * width, width),
          " at position ", start + static_cast<int64_t>(good), ", but the vocabulary has ", vocab_size,
          " tokens: use data for this vocabulary, or a larger --vocab-size"));
    }
    out.remove_prefix(part.size());
    return absl::OkStatus();
  };
  return ForEachPart(first, static_cast<int64_t>(out.size()), read);
}

absl::Status Corpus::ReadLossMask(int64_t first, absl::Span<uint8_t> out) const {
  WEFT_CHECK(has_loss_mask_, "the corpus has no mask");
  const auto read = [&](const Source& source, int64_t start, int64_t count) -> absl::Status {
    const absl::Span<uint8_t> part = out.subspan(0, static_cast<size_t>(count));
    WEFT_RETURN_IF_ERROR(ReadFile(MaskOf(source.name), start, part.data(), part.size()));
    const auto* wrong = std::find_if(part.begin(), part.end(), [](uint8_t byte) { return byte > 1; });
    if (wrong != part.end()) {
      return absl::DataLossError(absl::StrCat("'", MaskOf(source.name), "' has the byte ", *wrong,
                                              " at position ", start + (wrong - part.begin()),
                                              ": a mask has bytes 0 and 1"));
    }
    out.remove_prefix(part.size());
    return absl::OkStatus();
  };
  return ForEachPart(first, static_cast<int64_t>(out.size()), read);
}

int64_t Corpus::BytesToCheck(int64_t vocab_size) const {
  const int64_t width = TokenBytes(format_);
  const int64_t largest = (int64_t{1} << (8 * width)) - 1;
  return largest < vocab_size ? 0 : tokens_ * width;
}

absl::Status Corpus::CheckTokens(int64_t vocab_size, int part, int parts,
                                 absl::FunctionRef<bool()> is_stopped) const {
  if (BytesToCheck(vocab_size) == 0) return absl::OkStatus();
  std::vector<int32_t> tokens(static_cast<size_t>(kReadTokens));
  return ForEachRead(tokens_, part, parts, "token ids", is_stopped, [&](int64_t first, size_t count) {
    return Read(first, vocab_size, absl::MakeSpan(tokens).subspan(0, count));
  });
}

absl::StatusOr<bool> Corpus::CheckLossMask(int part, int parts, absl::FunctionRef<bool()> is_stopped) const {
  std::vector<uint8_t> mask(static_cast<size_t>(kReadTokens));
  bool has_loss = false;
  const auto read = [&](int64_t first, size_t count) -> absl::Status {
    const absl::Span<uint8_t> bytes = absl::MakeSpan(mask).subspan(0, count);
    WEFT_RETURN_IF_ERROR(ReadLossMask(first, bytes));
    const absl::Span<const uint8_t> targets = bytes.subspan(first == 0 ? 1 : 0);
    has_loss = has_loss || std::find(targets.begin(), targets.end(), 1) != targets.end();
    return absl::OkStatus();
  };
  WEFT_RETURN_IF_ERROR(ForEachRead(tokens_, part, parts, "loss masks", is_stopped, read));
  return has_loss;
}

absl::Status Corpus::NoLossError() const {
  return absl::DataLossError(
      absl::StrCat("no token has a loss: '", MaskOf(sources_.front().name),
                   sources_.size() == 1 ? "' has no byte 1" : "' and the other masks have no byte 1",
                   " after the first token; give masks with a 1 for each token to learn"));
}

}  // namespace weft
