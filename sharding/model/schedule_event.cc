#include "weft/sharding/schedule_event.h"

#include <array>

namespace weft {

std::string_view Name(ScheduleEvent event) {
  constexpr std::array<std::string_view, 4> kNames = {"unshard", "wait", "reshard", "reduce"};
  return kNames[static_cast<size_t>(event)];
}

}  // namespace weft
