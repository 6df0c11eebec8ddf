// One end of the links of a credit scheduler, over a fake wire link.
#pragma once

#include <vector>

#include "src/comm/links/control_mail.h"
#include "src/comm/links/credit_scheduler.h"
#include "tests/comm/links/fake_wire_link.h"

namespace weft::testing {

inline constexpr size_t kSlice = 100;  // Bytes.
inline constexpr TagLayout kTags{.per_lane = 8, .lanes = 16};

class TransferOwner final : public WireOwner {
 public:
  void OnWireDone(int64_t slice) override { done.push_back(slice); }
  std::vector<int64_t> done;
};

struct SchedulerEnd {
  explicit SchedulerEnd(bool has_rendezvous = true) : link(has_rendezvous) {}

  EngineOptions options;
  EngineCounters counters;
  FakeWireLink link;
  const SystemRuntime runtime{};
  TraceLog trace{runtime};
  ControlMail mail{link, counters};
  CreditScheduler scheduler{link, mail, kTags, options, counters, trace};
  TransferOwner owner;
};

}  // namespace weft::testing
