#include "src/train/files/json.h"

#include <cstddef>
#include <utility>
#include <vector>

#include <absl/container/flat_hash_map.h>

#include "src/train/files/json_events.h"

namespace weft {
namespace {

// Makes the value of a text. nlohmann's own parser compares each key with all keys before it, which takes
// minutes for an object of half a million keys.
class ValueBuilder : public JsonEvents {
 public:
  Json Take() { return std::move(root_); }

  bool OnScalar(Value value) override {
    Add(std::move(value));
    return true;
  }
  bool OnKey(const std::string& key) override {
    key_ = key;
    return true;
  }
  bool OnOpen(bool is_object) override {
    Json& value = Add(is_object ? Json::object() : Json::array());
    open_.push_back({&value, {}});
    return true;
  }
  bool OnClose() override {
    open_.pop_back();
    return true;
  }

 private:
  // An object or array whose end has not been read. Its own container does not change until then.
  struct Open {
    Json* value;
    absl::flat_hash_map<std::string, size_t> position_of_key;
  };

  // The last of several values of one key remains.
  Json& Add(Json value) {
    if (open_.empty()) return root_ = std::move(value);
    Open& open = open_.back();
    if (open.value->is_array()) {
      open.value->push_back(std::move(value));
      return open.value->back();
    }
    auto& members = open.value->get_ref<Json::object_t&>();
    const auto [found, is_new] = open.position_of_key.try_emplace(key_, members.size());
    if (is_new) members.emplace_back(key_, Json());
    Json& member = (members.begin() + static_cast<std::ptrdiff_t>(found->second))->second;
    return member = std::move(value);
  }

  Json root_;
  std::vector<Open> open_;
  std::string key_;  // Of the next value of an object.
};

}  // namespace

bool JsonEvents::ParseEvents(std::string_view text) { return Json::sax_parse(text, this); }

Json ParseJson(std::string_view text) {
  ValueBuilder builder;
  return builder.ParseEvents(text) ? builder.Take() : Json(Json::value_t::discarded);
}

std::string JsonText(const Json& value, int indent) {
  return value.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace weft
