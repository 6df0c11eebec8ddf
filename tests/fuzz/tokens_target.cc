#include <algorithm>
#include <array>
#include <vector>

#include "tests/fuzz/targets.h"
#include "tests/fuzz/temp_input.h"
#include "weft/core/status.h"
#include "weft/train/corpus.h"

namespace weft {

int FuzzTokens(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  constexpr std::array<const char*, 4> kSuffixes = {".txt", ".bin", ".u16", ".u32"};
  const int64_t vocab_size = 1 + (data[0] >> 2) * 1031;
  const TempInput file(kSuffixes[data[0] % kSuffixes.size()], data + 1, size - 1);
  const std::vector<std::string> paths = {file.path()};
  const auto corpus = Corpus::Open(paths);
  if (!corpus.ok()) return 0;
  std::vector<int32_t> tokens(static_cast<size_t>(corpus->tokens()));
  const bool readable = corpus->Read(0, vocab_size, absl::MakeSpan(tokens)).ok();
  WEFT_CHECK(readable == corpus->CheckTokens(vocab_size, 0, 1).ok(), "a read and the check differ");
  const auto in_range = [&](int32_t token) { return token >= 0 && token < vocab_size; };
  WEFT_CHECK(!readable || std::all_of(tokens.begin(), tokens.end(), in_range), "a token is out of range");
  return 0;
}

}  // namespace weft
