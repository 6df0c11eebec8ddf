#include "src/train/files/safetensors_header.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "src/train/files/json_events.h"
#include "src/train/files/json_text.h"
#include "weft/core/status.h"
#include "weft/train/safetensors.h"

namespace weft {
namespace {

using Entries = std::map<std::string, SafetensorsEntry>;

constexpr int64_t kLengthBytes = 8;
// Above those of any model: a tensor has about ten values, and the largest models have about 100,000 tensors.
constexpr JsonLimits kLimits = {.levels = 8, .values = 4'000'000, .token_bytes = 1 << 20};

absl::Status Damaged(const std::string& path, const absl::AlphaNum& what) {
  return absl::DataLossError(absl::StrCat("'", path, "': ", what));
}

// Bytes per element of one of the format's dtypes; nullopt for an unknown dtype.
std::optional<int64_t> ElementBytes(const std::string& dtype) {
  static constexpr std::array<std::pair<std::string_view, int64_t>, 15> kSizes = {{{"F64", 8},
                                                                                   {"I64", 8},
                                                                                   {"U64", 8},
                                                                                   {"F32", 4},
                                                                                   {"I32", 4},
                                                                                   {"U32", 4},
                                                                                   {"F16", 2},
                                                                                   {"BF16", 2},
                                                                                   {"I16", 2},
                                                                                   {"U16", 2},
                                                                                   {"F8_E4M3", 1},
                                                                                   {"F8_E5M2", 1},
                                                                                   {"I8", 1},
                                                                                   {"U8", 1},
                                                                                   {"BOOL", 1}}};
  const auto* const found =
      std::find_if(kSizes.begin(), kSizes.end(), [&](const auto& size) { return size.first == dtype; });
  return found == kSizes.end() ? std::nullopt : std::optional(found->second);
}

// Bytes of a tensor; nullopt if a size or the product overflows.
std::optional<int64_t> CheckedBytes(const std::vector<uint64_t>& shape, int64_t element_bytes) {
  int64_t bytes = element_bytes;
  for (const uint64_t size : shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return bytes;
}

// Base of the parsers. Keeps the first error.
class Parser : public JsonEvents {
 public:
  explicit Parser(const std::string& path) : path_(path) {}

  // Parses the text and returns its first error. `not_json`: the message for text that is not a JSON object.
  absl::Status Parse(std::string_view text, const char* not_json) {
    if (const absl::Status status = CheckJsonText(text, kLimits); !status.ok()) {
      return Damaged(path_, ToAbsl(ToStd(status.message())));
    }
    const bool parsed = ParseEvents(text);
    if (!status_.ok()) return status_;
    return parsed && is_object_ ? absl::OkStatus() : Damaged(path_, not_json);
  }

 protected:
  bool Fail(const absl::AlphaNum& what) {
    status_ = Damaged(path_, what);
    return false;
  }
  // Returns true if the outermost value is an object. Call it at level 0.
  bool OpenRoot(bool is_object) { return is_object_ = is_object; }
  const std::string& path() const { return path_; }

 private:
  const std::string& path_;
  absl::Status status_;
  bool is_object_ = false;
};

class HeaderParser : public Parser {
 public:
  HeaderParser(const std::string& path, int64_t data_start, int64_t file_bytes)
      : Parser(path), data_start_(data_start), data_bytes_(static_cast<uint64_t>(file_bytes - data_start)) {}

  bool OnOpen(bool is_object) override {
    if (level() == 0) return OpenRoot(is_object);
    if (level() == 1) return is_object || Malformed();
    return (level() == 2 && !is_object && !in_metadata_ && list_ != nullptr) || Malformed();
  }

  bool OnKey(const std::string& key) override {
    if (level() == 1) return StartTensor(key);
    if (in_metadata_) return true;
    list_ = nullptr;
    std::optional<bool*> seen;
    if (key == "dtype") seen = &has_dtype_;
    if (key == "shape") seen = &has_shape_, list_ = &shape_;
    if (key == "data_offsets") seen = &has_range_, list_ = &range_;
    if (!seen || **seen) return Malformed();
    return **seen = true;
  }

  bool OnScalar(Value value) override {
    if (level() == 2 && value.is_string() && (in_metadata_ || list_ == nullptr)) {
      if (!in_metadata_) dtype_ = value.get<std::string>();
      return true;
    }
    if (level() != 3 || !value.is_number_unsigned() || list_->size() == kMaxTensorDims) return Malformed();
    list_->push_back(value.get<uint64_t>());
    return true;
  }

  bool OnClose() override { return level() != 1 || in_metadata_ || AddTensor(); }

  // The entries, if they cover the data. REQUIRES: Parse succeeded.
  absl::StatusOr<Entries> Take() {
    WEFT_RETURN_IF_ERROR(CheckCoverage());
    return std::move(entries_);
  }

 private:
  bool Malformed() {
    if (level() == 0) return false;
    return Fail(in_metadata_ ? absl::StrCat("__metadata__ is not an object of strings")
                             : absl::StrCat("tensor '", Excerpt(name_),
                                            "' lacks a well-formed dtype, shape or data_offsets"));
  }

  bool FailTensor(const absl::AlphaNum& what) {
    return Fail(absl::StrCat("tensor '", Excerpt(name_), "' ", what));
  }

  bool StartTensor(const std::string& name) {
    name_ = name;
    in_metadata_ = name == "__metadata__";
    has_dtype_ = has_shape_ = has_range_ = false;
    list_ = nullptr;
    shape_.clear();
    range_.clear();
    if (in_metadata_) {
      return !std::exchange(has_metadata_, true) || Fail("__metadata__ is given twice");
    }
    if (entries_.size() == kMaxFileTensors) {
      return Fail(absl::StrCat("has more than ", kMaxFileTensors,
                               " tensors: it is damaged, or not a file of weights"));
    }
    return entries_.count(name) == 0 || FailTensor("is given twice");
  }

  bool AddTensor() {
    if (!has_dtype_ || !has_shape_ || !has_range_ || range_.size() != 2) return Malformed();
    const std::optional<int64_t> element_bytes = ElementBytes(dtype_);
    if (!element_bytes) return FailTensor(absl::StrCat("has the unknown dtype '", Excerpt(dtype_), "'"));
    const uint64_t begin = range_[0];
    const uint64_t end = range_[1];
    if (begin > end || end > data_bytes_) {
      return FailTensor(absl::StrCat("lies at bytes ", begin, " to ", end, ", but the file has ", data_bytes_,
                                     " bytes of data: it is truncated or damaged; download it again"));
    }
    SafetensorsEntry entry{path(), dtype_, Shape(shape_.begin(), shape_.end()),
                           data_start_ + static_cast<int64_t>(begin), static_cast<int64_t>(end - begin)};
    if (CheckedBytes(shape_, *element_bytes) != entry.bytes) {
      return FailTensor(absl::StrCat("of shape [", absl::StrJoin(shape_, ", "), "] and dtype ", dtype_,
                                     " has ", entry.bytes, " bytes, which do not fit its shape"));
    }
    entries_.emplace(name_, std::move(entry));
    return true;
  }

  // The format forbids gaps and overlaps. They would also be the only trace of a header of a wrong length.
  absl::Status CheckCoverage() const {
    std::vector<Entries::const_pointer> by_offset;
    for (const auto& entry : entries_) by_offset.push_back(&entry);
    std::sort(by_offset.begin(), by_offset.end(), [](const auto* a, const auto* b) {
      return std::pair(a->second.offset, a->second.bytes) < std::pair(b->second.offset, b->second.bytes);
    });
    int64_t end = data_start_;
    const std::string* previous = nullptr;
    for (const auto* next : by_offset) {
      const auto& [name, entry] = *next;
      if (entry.offset < end) {
        return Damaged(path(),
                       absl::StrCat("tensors '", Excerpt(*previous), "' and '", Excerpt(name), "' overlap"));
      }
      WEFT_RETURN_IF_ERROR(CheckNoGap(end, entry.offset));
      end = entry.offset + entry.bytes;
      previous = &name;
    }
    return CheckNoGap(end, data_start_ + static_cast<int64_t>(data_bytes_));
  }

  absl::Status CheckNoGap(int64_t end, int64_t begin) const {
    if (end == begin) return absl::OkStatus();
    return Damaged(path(), absl::StrCat("has data at bytes ", end, " to ", begin,
                                        " that belong to no tensor: it is damaged; download it again"));
  }

  int64_t data_start_;
  uint64_t data_bytes_;
  Entries entries_;
  bool has_metadata_ = false;
  // State of the tensor, or of the metadata, that is being read.
  std::string name_;
  bool in_metadata_ = false;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_range_ = false;
  std::string dtype_;
  std::vector<uint64_t> shape_;
  std::vector<uint64_t> range_;
  std::vector<uint64_t>* list_ = nullptr;  // The list that the last key named.
};

// True for the name of a file in the folder itself.
bool IsFileName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

class IndexParser : public Parser {
 public:
  using Parser::Parser;

  bool OnOpen(bool is_object) override {
    if (level() == 0) return OpenRoot(is_object);
    if (level() == 1 && in_map_) return is_object;
    return !in_map_ || NotAName();
  }
  bool OnKey(const std::string& key) override {
    if (level() == 1) {
      in_map_ = key == "weight_map";
      return !in_map_ || !std::exchange(has_map_, true) || Fail("has two weight_maps");
    }
    if (in_map_) name_ = key;
    return true;
  }
  bool OnScalar(Value value) override {
    if (!in_map_) return true;
    if (level() != 2 || !value.is_string() || !IsFileName(value.get<std::string>())) return NotAName();
    if (files_.size() == kMaxFileTensors)
      return Fail(absl::StrCat("has more than ", kMaxFileTensors, " tensors"));
    return files_.emplace(name_, value.get<std::string>()).second ||
           Fail(absl::StrCat("weight_map has '", Excerpt(name_), "' twice"));
  }
  bool OnClose() override { return true; }

  bool has_map() const { return has_map_; }
  std::map<std::string, std::string> Take() { return std::move(files_); }

 private:
  bool NotAName() {
    if (level() < 2) return false;
    return Fail(absl::StrCat("weight_map of '", Excerpt(name_), "' is not a file name"));
  }

  bool has_map_ = false;
  bool in_map_ = false;  // The last key of the outermost object was weight_map.
  std::string name_;
  std::map<std::string, std::string> files_;
};

}  // namespace

absl::StatusOr<std::map<std::string, SafetensorsEntry>> ParseSafetensorsHeader(std::string_view header,
                                                                               const std::string& path,
                                                                               int64_t file_bytes) {
  constexpr const char* kNotJson =
      "has a header that is not a JSON object: the file is damaged or not a safetensors file";
  // The format requires '{' as the first byte, but the parser would skip white space and a byte order mark.
  if (header.empty() || header.front() != '{') return Damaged(path, kNotJson);
  const int64_t data_start = kLengthBytes + static_cast<int64_t>(header.size());
  if (data_start > file_bytes) {
    return Damaged(
        path, absl::StrCat("has a header of ", header.size(), " bytes, but only ", file_bytes, " bytes"));
  }
  HeaderParser parser(path, data_start, file_bytes);
  WEFT_RETURN_IF_ERROR(parser.Parse(header, kNotJson));
  return parser.Take();
}

absl::StatusOr<std::map<std::string, std::string>> ParseSafetensorsIndex(std::string_view text,
                                                                         const std::string& path) {
  constexpr const char* kNotJson = "is not a JSON object with a weight_map";
  IndexParser parser(path);
  WEFT_RETURN_IF_ERROR(parser.Parse(text, kNotJson));
  if (!parser.has_map()) return Damaged(path, kNotJson);
  return parser.Take();
}

}  // namespace weft
