// What the schedule of a sharded model does to its groups, for those who watch: tests, traces.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace weft {

class ParamGroup;

enum class ScheduleEvent : uint8_t {
  kUnshard,  // A gather was submitted.
  kWait,     // It was waited for: the parameters can be used.
  kReshard,  // The parameters were given back.
  kReduce,   // A reduction of the gradients was submitted.
};

// "unshard", "wait", "reshard", "reduce".
std::string_view Name(ScheduleEvent event);

// Called after each event, on the thread that drives the model.
using ScheduleObserver = std::function<void(ScheduleEvent event, const ParamGroup& group)>;

}  // namespace weft
