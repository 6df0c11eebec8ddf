// Base of parsers that read JSON as a stream of events, without keeping it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "src/train/files/json.h"

namespace weft {

// A parser overrides the four functions On…; each returns false to end the parse. `level()` is the number of
// open arrays and objects.
class JsonEvents : public nlohmann::json_sax<Json> {
 public:
  using Value = Json;

  // Calls the functions for the parts of the text, in order. False if the text is not JSON, or if a function
  // ended the parse.
  bool ParseEvents(std::string_view text);

  // Called for a string, number, boolean or null.
  virtual bool OnScalar(Value value) = 0;
  virtual bool OnKey(const std::string& key) = 0;
  // Called before the level rises.
  virtual bool OnOpen(bool is_object) = 0;
  // Called after the level has fallen.
  virtual bool OnClose() = 0;

  bool null() final { return OnScalar(nullptr); }
  bool boolean(bool value) final { return OnScalar(value); }
  bool number_integer(number_integer_t value) final { return OnScalar(value); }
  bool number_unsigned(number_unsigned_t value) final { return OnScalar(value); }
  bool number_float(number_float_t value, const string_t& /*text*/) final { return OnScalar(value); }
  bool string(string_t& value) final { return OnScalar(std::move(value)); }
  bool binary(binary_t& /*value*/) final { return false; }
  bool key(string_t& value) final { return OnKey(value); }
  bool start_object(std::size_t /*elements*/) final { return Open(true); }
  bool start_array(std::size_t /*elements*/) final { return Open(false); }
  bool end_object() final { return Close(); }
  bool end_array() final { return Close(); }
  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) final {
    return false;
  }

 protected:
  int level() const { return level_; }

 private:
  bool Open(bool is_object) {
    if (!OnOpen(is_object)) return false;
    ++level_;
    return true;
  }
  bool Close() {
    --level_;
    return OnClose();
  }
  int level_ = 0;
};

}  // namespace weft
