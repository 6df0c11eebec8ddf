// Checks of untrusted JSON text before it is parsed, and excerpts of it in messages.
//
// Note [Untrusted JSON]
// Problem: a parser keeps what it reads. Text that nests 200,000 deep overflows the stack of recursive
//   functions over its values; millions of short values take many times the memory of the text; a NUL ends
//   the text for the parser, but not for other readers of the file.
// Rule: all JSON of a model folder, and every flight recorder, passes CheckJsonText before it is parsed.
// Why it suffices: the scan looks at bytes only, in constant memory, and counts at least as many levels and
//   values as the parser would find.
// Without it: an untrusted file ends every rank.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <absl/status/status.h>

namespace weft {

struct JsonLimits {
  int64_t levels;       // Nesting depth of arrays and objects.
  int64_t values;       // Values in all arrays and objects together.
  int64_t token_bytes;  // Length of one string or number.
};

// Errors: kDataLoss ("has more than …"; the caller names the file). OK does not mean that the text is JSON.
absl::Status CheckJsonText(std::string_view text, const JsonLimits& limits);

// The text for a message: control characters are escaped, and the rest is cut after about 80 bytes, between
// two characters.
std::string Excerpt(std::string_view text);

}  // namespace weft
