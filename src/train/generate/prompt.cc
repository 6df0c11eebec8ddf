#include "src/train/generate/prompt.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <variant>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include "src/train/config/flag_error.h"
#include "src/train/config/special_tokens.h"
#include "src/train/files/file_io.h"
#include "src/train/files/json.h"
#include "src/train/files/json_text.h"
#include "src/train/files/model_folder.h"
#include "src/train/plan/inputs.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr const char* kGenerationConfig = "generation_config.json";
constexpr int64_t kMaxBytes = 1 << 20;
constexpr JsonLimits kLimits = {.levels = 32, .values = 20'000, .token_bytes = kMaxBytes};
constexpr int64_t kByteValues = 256;
constexpr const char* kStandardInput = "-";
constexpr size_t kMaxPromptBytes = 16 << 20;
constexpr size_t kMaxShownBytes = 40;  // Of an item that is not a token id.
constexpr const char* kFileFlag = "prompt-tokens-file";

// Fails if the text of the prompt or of the output would need a tokenizer.
absl::Status CheckTokensAreBytes(const GenerateConfig& config, const LlamaConfig& model) {
  const std::string tokenizer = TokenizerOf(config.hf_folder);
  if (tokenizer.empty() && model.vocab_size <= kByteValues) return absl::OkStatus();
  const std::string why = tokenizer.empty() ? absl::StrCat("its vocabulary has ", model.vocab_size, " tokens")
                                            : absl::StrCat("it has the tokenizer ", tokenizer);
  return BadFlag("hf-model", config.hf_folder,
                 absl::StrCat("the tokens of this model are not bytes, as ", why,
                              ": give token ids (--prompt-tokens 1,2,3 --print-tokens), or use "
                              "tools/generate.py, which runs a tokenizer.json"));
}

// Why a sequence cannot have more than `limit` tokens.
std::string LimitOf(const LlamaConfig& model, int64_t limit) {
  if (limit == model.LongestSequence()) return absl::StrCat("the model has ", limit, " positions, and");
  const bool is_dynamic = std::holds_alternative<DynamicRopeScaling>(*model.rope_scaling);
  return absl::StrCat("the model's rope_type ", is_dynamic ? "dynamic" : "longrope",
                      " rotates all keys differently beyond ", limit,
                      " positions, but cached keys are rotated already;");
}

absl::StatusOr<std::vector<int32_t>> TokensOf(const std::vector<absl::string_view>& items) {
  std::vector<int32_t> tokens;
  for (const absl::string_view item : items) {
    int32_t token = -1;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), token);
    if (error != std::errc() || end != item.data() + item.size() || token < 0) {
      const bool is_long = item.size() > kMaxShownBytes;
      return absl::InvalidArgumentError(
          absl::StrCat("'", item.substr(0, kMaxShownBytes), is_long ? "..." : "",
                       "' is not a token id: give whole numbers, such as 1,2,3"));
    }
    tokens.push_back(token);
  }
  return tokens;
}

absl::Status BadPromptFile(const std::string& path, absl::string_view what) {
  return absl::DataLossError(absl::StrCat("--", kFileFlag, " ", path, ": ", what));
}

// As read, but waits for bytes also if the standard input does not block, as another process may have set it.
ssize_t ReadSome(char* bytes, size_t size) {
  for (;;) {
    const ssize_t count = read(STDIN_FILENO, bytes, size);
    if (count >= 0 || (errno != EINTR && errno != EAGAIN)) return count;
    if (errno == EINTR) continue;
    pollfd polled{STDIN_FILENO, POLLIN, 0};
    poll(&polled, 1, /*timeout=*/-1);
  }
}

absl::StatusOr<std::string> ReadStandardInput(std::FILE* messages) {
  if (messages != nullptr && isatty(STDIN_FILENO) == 1) {
    std::fprintf(messages,
                 "--%s -: reads token ids from the terminal; Ctrl-D at the start of a line ends them\n",
                 kFileFlag);
  }
  std::string text;
  std::array<char, 4096> part;
  for (ssize_t bytes = 1; bytes > 0;) {
    bytes = ReadSome(part.data(), part.size());
    if (bytes < 0)
      return BadPromptFile(kStandardInput, absl::StrCat("cannot be read: ", std::strerror(errno)));
    text.append(part.data(), static_cast<size_t>(bytes));
    if (text.size() > kMaxPromptBytes) {
      return BadPromptFile(kStandardInput, absl::StrCat("has more than ", kMaxPromptBytes, " bytes"));
    }
  }
  return text;
}

absl::StatusOr<std::vector<int32_t>> EndTokensIn(const std::string& text, const std::string& path,
                                                 int64_t vocab_size) {
  const auto damaged = [&path](const absl::AlphaNum& what) {
    return absl::DataLossError(absl::StrCat("'", path, "' ", what));
  };
  WEFT_RETURN_IF_ERROR(Annotate(CheckJsonText(text, kLimits), path));
  const auto json = ParseJson(text);
  if (!json.is_object()) return damaged("is not a JSON object");
  std::vector<int32_t> tokens;
  const auto value = json.find("eos_token_id");
  if (value == json.end() || value->is_null()) return tokens;
  for (const Json& token : value->is_array() ? *value : Json::array({*value})) {
    if (!IsTokenId(token))
      return damaged("has an eos_token_id that is neither a token id nor a list of them");
    tokens.push_back(token.get<int32_t>());
    if (tokens.back() < vocab_size) continue;
    return damaged(absl::StrCat("has the eos_token_id ", tokens.back(), ": the vocabulary ends at ",
                                vocab_size - 1,
                                ", so the model never gives it; take the file of this model"));
  }
  std::sort(tokens.begin(), tokens.end());
  return tokens;
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> ParseTokenIds(std::string_view text) {
  absl::StatusOr<std::vector<int32_t>> tokens = TokensOf(absl::StrSplit(ToAbsl(text), ','));
  return tokens.ok() ? tokens : BadFlag("prompt-tokens", ToAbsl(text), tokens.status().message());
}

absl::StatusOr<std::string> ReadTokenIds(const std::string& path, std::FILE* messages) {
  WEFT_ASSIGN_OR_RETURN(const std::string text, path == kStandardInput
                                                    ? ReadStandardInput(messages)
                                                    : ReadWholeFile(path, kMaxPromptBytes));
  const auto tokens = TokensOf(absl::StrSplit(text, absl::ByAnyChar(", \t\r\n"), absl::SkipEmpty()));
  if (!tokens.ok()) return BadPromptFile(path, tokens.status().message());
  if (tokens->empty()) return BadPromptFile(path, "has no token ids");
  return absl::StrJoin(*tokens, ",");
}

absl::StatusOr<std::vector<int32_t>> ReadPrompt(const GenerateConfig& config, const LlamaConfig& model) {
  std::vector<int32_t> tokens;
  if (config.prompt || !config.print_tokens) WEFT_RETURN_IF_ERROR(CheckTokensAreBytes(config, model));
  if (config.prompt) {
    for (const char byte : *config.prompt) tokens.push_back(static_cast<unsigned char>(byte));
  } else {
    WEFT_ASSIGN_OR_RETURN(tokens, ParseTokenIds(*config.prompt_tokens));
  }
  for (const int32_t token : tokens) {
    if (token < model.vocab_size) continue;
    const std::string why =
        absl::StrCat("the vocabulary ends at ", model.vocab_size - 1, ": use its tokens only");
    if (config.prompt_tokens_file.empty()) {
      return BadFlag(config.prompt ? "prompt" : "prompt-tokens", token, why);
    }
    return BadFlag(kFileFlag, config.prompt_tokens_file, absl::StrCat("token ", token, ": ", why));
  }
  return tokens;
}

int64_t GenerationRopeSequence(const LlamaConfig& model, int64_t prompt_tokens) {
  const bool is_longrope =
      model.rope_scaling.has_value() && std::holds_alternative<LongRopeScaling>(*model.rope_scaling);
  return is_longrope ? prompt_tokens : 0;
}

absl::Status CheckLength(const LlamaConfig& model, int64_t prompt_tokens, int64_t max_new_tokens) {
  const int64_t limit = model.PositionLimit();
  const int64_t left = limit - prompt_tokens;
  if (max_new_tokens <= left) return absl::OkStatus();
  return BadFlag(
      "max-new-tokens", max_new_tokens,
      absl::StrCat(
          LimitOf(model, limit), " the prompt takes ", prompt_tokens, ": use ",
          left > 0 ? absl::StrCat("at most ", left) : "a shorter prompt",
          limit < model.max_positions ? absl::StrCat(", or a prompt of more than ", limit, " tokens") : ""));
}

absl::StatusOr<std::vector<int32_t>> ReadEndTokens(const std::string& folder, const std::string& hf_config,
                                                   int64_t vocab_size) {
  const absl::StatusOr<std::string> text = ReadModelFile(folder, kGenerationConfig, kMaxBytes);
  if (absl::IsNotFound(text.status())) return EndTokensIn(hf_config, folder + "/config.json", vocab_size);
  WEFT_RETURN_IF_ERROR(text.status());
  return EndTokensIn(*text, absl::StrCat(folder, "/", kGenerationConfig), vocab_size);
}

}  // namespace weft
