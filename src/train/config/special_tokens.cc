#include "src/train/config/special_tokens.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

#include "src/train/files/json.h"
#include "src/train/files/json_events.h"
#include "src/train/files/json_text.h"
#include "src/train/files/model_folder.h"
#include "weft/core/status.h"
#include "weft/nn/llama_config.h"

namespace weft {
namespace {

// Limits above the needs of any tokenizer. Its vocabulary is read as a stream, and not kept.
constexpr int64_t kMaxBytes = 256 << 20;
constexpr JsonLimits kLimits = {.levels = 64, .values = 50'000'000, .token_bytes = 1 << 20};
constexpr int64_t kMaxSettingsBytes = 16 << 20;
constexpr JsonLimits kSettingsLimits = {.levels = 64, .values = 500'000, .token_bytes = 8 << 20};
constexpr size_t kMaxAddedTokens = 100'000;

constexpr const char* kTokenizer = "tokenizer.json";
constexpr const char* kTokenizerConfig = "tokenizer_config.json";
constexpr const char* kGenerationConfig = "generation_config.json";

using TokenIds = std::map<std::string, int64_t>;

// Collects added_tokens of a tokenizer.json: a list of objects with an id and a content.
class AddedTokens : public JsonEvents {
 public:
  const TokenIds& ids() const { return ids_; }

  bool OnKey(const std::string& key) override {
    if (level() == 1) in_list_ = key == "added_tokens";
    key_ = key;
    return true;
  }
  bool OnScalar(Value value) override {
    if (!in_list_ || level() != 3) return true;
    if (key_ == "id" && IsTokenId(value)) id_ = value.get<int64_t>();
    if (key_ == "content" && value.is_string()) content_ = value.get<std::string>();
    return true;
  }
  bool OnOpen(bool /*is_object*/) override {
    if (level() == 2) {
      id_.reset();
      content_.reset();
    }
    return true;
  }
  bool OnClose() override {
    if (in_list_ && level() == 2 && id_ && content_) ids_[*content_] = *id_;
    return ids_.size() <= kMaxAddedTokens;
  }

 private:
  TokenIds ids_;
  bool in_list_ = false;
  std::string key_;
  std::optional<int64_t> id_;
  std::optional<std::string> content_;
};

std::string PathOf(const std::string& folder, const char* name) {
  return absl::StrCat("'", folder, "/", name, "'");
}

// A JSON object of the folder; null if there is no such file.
absl::StatusOr<Json> ReadSettings(const std::string& folder, const char* name) {
  const absl::StatusOr<std::string> text = ReadModelFile(folder, name, kMaxSettingsBytes);
  if (absl::IsNotFound(text.status())) return Json();
  WEFT_RETURN_IF_ERROR(text.status());
  if (const absl::Status status = CheckJsonText(*text, kSettingsLimits); !status.ok()) {
    return Annotate(status, PathOf(folder, name));
  }
  Json json = ParseJson(*text);
  if (json.is_object()) return json;
  return absl::DataLossError(absl::StrCat(PathOf(folder, name), " is not a JSON object"));
}

absl::StatusOr<TokenIds> ReadAddedTokens(const std::string& folder, const Json& settings) {
  TokenIds ids;
  // Tokenizers without a tokenizer.json have their added tokens among the settings, by id.
  if (const auto decoder = settings.find("added_tokens_decoder");
      decoder != settings.end() && decoder->is_object()) {
    for (const auto& [id, token] : decoder->items()) {
      uint64_t number = 0;
      if (absl::SimpleAtoi(id, &number) && IsTokenId(number) && token.is_object() &&
          token.value("content", Json()).is_string()) {
        ids[token["content"].get<std::string>()] = static_cast<int64_t>(number);
      }
    }
  }
  const absl::StatusOr<std::string> text = ReadModelFile(folder, kTokenizer, kMaxBytes);
  if (absl::IsNotFound(text.status())) return ids;
  WEFT_RETURN_IF_ERROR(text.status());
  if (const absl::Status status = CheckJsonText(*text, kLimits); !status.ok()) {
    return Annotate(status, PathOf(folder, kTokenizer));
  }
  AddedTokens added;
  if (!added.ParseEvents(*text)) {
    return absl::DataLossError(absl::StrCat(PathOf(folder, kTokenizer), " is not a tokenizer's JSON"));
  }
  for (const auto& [content, id] : added.ids()) ids[content] = id;
  return ids;
}

// True for a token id, a list of some, or null.
bool AreTokenIds(const Json& value) {
  constexpr size_t kMostIds = 1000;
  if (!value.is_array()) return value.is_null() || IsTokenId(value);
  return value.size() <= kMostIds && std::all_of(value.begin(), value.end(), IsTokenId);
}

// The content of a token in tokenizer_config.json: a string, or an object with it. Unset for null.
std::optional<std::string> ContentOf(const Json& token) {
  const Json content = token.is_object() ? token.value("content", Json()) : token;
  return content.is_string() ? std::optional(content.get<std::string>()) : std::nullopt;
}

}  // namespace

bool IsTokenId(const Json& value) {
  return value.is_number_unsigned() && value.get<uint64_t>() < uint64_t{LlamaLimits::kVocabulary};
}

absl::StatusOr<std::string> WithTokensOfTokenizer(const std::string& config, const std::string& folder) {
  WEFT_ASSIGN_OR_RETURN(const Json settings, ReadSettings(folder, kTokenizerConfig));
  WEFT_ASSIGN_OR_RETURN(const Json generation, ReadSettings(folder, kGenerationConfig));
  Json json = ParseJson(config);
  std::optional<TokenIds> ids;
  const struct {
    const char* token;
    const char* id;
  } keys[] = {{"bos_token", "bos_token_id"}, {"eos_token", "eos_token_id"}};
  for (const auto& key : keys) {
    const auto named = settings.find(key.token);
    if (named == settings.end()) {
      if (!generation.contains(key.id)) continue;
      if (!AreTokenIds(generation[key.id])) {
        return absl::DataLossError(absl::StrCat(PathOf(folder, kGenerationConfig), ": ", key.id, " is ",
                                                Excerpt(JsonText(generation[key.id])),
                                                ", but it must be a token id or a list of some"));
      }
      json[key.id] = generation[key.id];
      continue;
    }
    const std::optional<std::string> content = ContentOf(*named);
    if (!content) {
      json[key.id] = nullptr;
      continue;
    }
    if (!ids) {
      WEFT_ASSIGN_OR_RETURN(ids, ReadAddedTokens(folder, settings));
    }
    const auto found = ids->find(*content);
    if (found == ids->end()) {
      return absl::DataLossError(absl::StrCat(PathOf(folder, kTokenizerConfig), ": ", key.token, " is '",
                                              Excerpt(*content), "', which is not among the added tokens of ",
                                              kTokenizer, ": give the tokenizer that has it"));
    }
    json[key.id] = found->second;
  }
  return JsonText(json, 2);
}

}  // namespace weft
