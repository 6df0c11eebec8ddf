// Events of a sharded model's schedule, for observers such as tests and traces.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace weft {

enum class ScheduleEvent : uint8_t {
  kUnshard,  // A gather was submitted.
  kWait,     // A gather was waited for: the parameters can be used.
  kReshard,  // The parameters were given back.
  kReduce,   // A reduction of the gradients was submitted.
};

inline std::string_view Name(ScheduleEvent event) {
  switch (event) {
    case ScheduleEvent::kUnshard:
      return "unshard";
    case ScheduleEvent::kWait:
      return "wait";
    case ScheduleEvent::kReshard:
      return "reshard";
    case ScheduleEvent::kReduce:
      return "reduce";
  }
  return "unknown";
}

// Called after each event, with the name of the group, on the thread that drives the model.
using ScheduleObserver = std::function<void(ScheduleEvent event, const std::string& group)>;

}  // namespace weft
