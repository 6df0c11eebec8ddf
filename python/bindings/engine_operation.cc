#include "python/bindings/engine_operation.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>

#include "python/interface/deadline.h"
#include "weft/mesh/unpaused_clock.h"

namespace weft::python {
namespace {

// Threads that wait for one operation take turns. Close waits for at most this long for a turn.
constexpr absl::Duration kSlice = absl::Milliseconds(50);

Outcome ToOutcome(const absl::Status& status) {
  if (status.ok()) return {};
  return {absl::IsDeadlineExceeded(status) ? Outcome::Code::kTimeout : Outcome::Code::kFailed,
          std::string(status.message())};
}

}  // namespace

std::shared_ptr<EngineOperation> EngineOperation::Submit(std::shared_ptr<Session> session,
                                                         std::shared_ptr<void> memory, bool needs_release,
                                                         const std::function<Work(CommEngine&)>& submit) {
  std::shared_ptr<EngineOperation> operation(
      new EngineOperation(std::move(session), std::move(memory), needs_release));
  const absl::Status submitted = operation->session_->WithEngine([&](CommEngine& engine) {
    operation->work_ = submit(engine);
    operation->number_ = operation->session_->CountUntilReady(operation->work_);
    operation->session_->Register(operation.get());
  });
  if (!submitted.ok()) operation->outcome_ = submitted;
  return operation;
}

EngineOperation::~EngineOperation() {
  if (!session_->is_of_this_process()) {
    // Note [Forked children]. The destructor of a Work waits.
    if (work_.valid()) static_cast<void>(new Work(std::move(work_)));
    return;
  }
  // Close settles operations before the engine ends. So no Work outlives the engine.
  const absl::Status open = session_->WithEngine([&](CommEngine&) {
    session_->Unregister(this);
    if (work_.valid()) work_.Detach({std::move(memory_)});
  });
  if (!open.ok()) session_->Unregister(this);
}

bool EngineOperation::IsDone() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return false;  // A thread waits for it. It learns of the end at once.
  return outcome_.has_value() || HasEnded();
}

absl::Status EngineOperation::WaitSlice(const Deadline& slice) {
  absl::Status waited;
  const absl::Status open = session_->WithEngine([&](CommEngine&) {
    const std::lock_guard lock(mutex_);
    if (!outcome_) {
      waited = WaitUntilEnded(slice.Left());
      if (absl::IsDeadlineExceeded(waited)) {
        if (!HasEnded()) return;
        waited = WaitUntilEnded(absl::ZeroDuration());  // It has ended since. Its own status.
      }
      outcome_ = waited;
      if (senders_ != nullptr && waited.ok()) source_ = work_.source();
    }
    waited = *outcome_;
  });
  if (!open.ok()) {  // Close has settled the operation.
    const std::lock_guard lock(mutex_);
    return outcome_.value_or(open);
  }
  return waited;
}

void EngineOperation::Poll(absl::Duration slice) {
  bool is_free = true;
  const absl::Status open = session_->WithEngine([&](CommEngine&) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    is_free = lock.owns_lock();
    if (is_free && !outcome_) static_cast<void>(WaitUntilEnded(slice));
  });
  if (open.ok() && !is_free) absl::SleepFor(slice);
}

Outcome EngineOperation::Wait(std::chrono::milliseconds timeout, const std::function<void()>& between) {
  if (!session_->is_of_this_process()) return ToOutcome(session_->WithEngine([](CommEngine&) {}));
  const Runtime& runtime = session_->bootstrap().runtime();
  UnpausedDeadline deadline(runtime, absl::FromChrono(timeout));
  while (true) {
    const absl::Duration left = deadline.Left();
    const absl::Status waited = WaitSlice(Deadline(runtime, std::min(left, kSlice)));
    if (!absl::IsDeadlineExceeded(waited)) return ToOutcome(waited);
    {
      const std::lock_guard lock(mutex_);
      if (outcome_) return {Outcome::Code::kFailed, std::string(outcome_->message())};
    }
    if (left <= kSlice) {
      session_->RecordMissedDeadline(this, number_, waited);
      return ToOutcome(waited);
    }
    if (between) between();
  }
}

void EngineOperation::WhenDone(std::chrono::milliseconds timeout, std::function<void(const Outcome&)> done) {
  const absl::Status open = session_->WithEngine([&](CommEngine&) {
    CompletionThread& completions = session_->completions();
    const auto ticket =
        completions.Add({.operation = shared_from_this(), .deadline = DeadlineAfter(timeout), .done = done});
    if (work_.valid()) {
      // The callback may outlive this operation, after a missed deadline, but not the engine.
      work_.Then([&completions, ticket](const absl::Status&) { completions.Notify(ticket); });
    } else {
      completions.Notify(ticket);
    }
  });
  if (!open.ok()) done(Wait(std::chrono::milliseconds(0), nullptr));
}

int EngineOperation::Source() const {
  const int source = source_;
  if (senders_ == nullptr || source < 0) return -1;
  const std::vector<int>& ranks = senders_->group.ranks;
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), source) - ranks.begin());
}

absl::Status EngineOperation::CheckReleased() const {
  if (work_.TestReleased()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("rank ", session_->rank(), " closed its session, but ",
                                         work_.Describe(), ", ", work_.DescribeWait()));
}

std::shared_ptr<void> EngineOperation::Settle(const absl::Status& otherwise) {
  const std::lock_guard lock(mutex_);
  if (!work_.valid()) return nullptr;
  if (!outcome_) outcome_ = HasEnded() ? WaitUntilEnded(absl::ZeroDuration()) : otherwise;
  std::shared_ptr<void> memory = memory_;
  work_.Detach({std::move(memory_)});
  return memory;
}

}  // namespace weft::python
