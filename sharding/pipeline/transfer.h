// Handle of a collective under way, submitted to the engine or started by a caller's function.
//
// Empty by default and after a move.
#pragma once

#include <memory>
#include <utility>

#include <absl/status/status.h>

#include "weft/comm/work.h"
#include "weft/sharding/custom_collectives.h"

namespace weft {

class Transfer {
 public:
  Transfer() = default;
  explicit Transfer(Work work) : work_(std::move(work)) {}
  explicit Transfer(std::unique_ptr<PendingCollective> custom) : custom_(std::move(custom)) {}

  bool valid() const { return custom_ != nullptr || work_.valid(); }
  // `check`: as for Work; a caller's collective is waited for without it.
  absl::Status Wait(const Work::WaitCheck& check) {
    return custom_ != nullptr ? custom_->Wait() : work_.Wait(check);
  }
  absl::Status WaitReleased(const Work::WaitCheck& check) {
    return custom_ != nullptr ? custom_->WaitReleased() : work_.WaitReleased(check);
  }
  bool TestReleased() const { return custom_ != nullptr ? custom_->TestReleased() : work_.TestReleased(); }
  // The engine's Work, which later operations may name as `after`. Null for a caller's collective.
  const Work* work() const { return work_.valid() ? &work_ : nullptr; }

 private:
  Work work_;
  std::unique_ptr<PendingCollective> custom_;
};

}  // namespace weft
