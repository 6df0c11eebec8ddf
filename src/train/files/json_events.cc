#include "src/train/files/json_events.h"

namespace weft {

bool JsonEvents::ParseEvents(std::string_view text) { return Json::sax_parse(text, this); }

}  // namespace weft
