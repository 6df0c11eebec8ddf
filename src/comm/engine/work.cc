#include "weft/comm/work.h"

#include <exception>
#include <utility>

#include <absl/strings/str_cat.h>

#include "src/comm/base/operation_record.h"
#include "src/comm/engine/engine_impl.h"

namespace weft {

Work::Work(CommEngine* engine, std::shared_ptr<OperationRecord> record)
    : engine_(engine), record_(std::move(record)) {}

Work::Work(Work&& other) noexcept
    : engine_(std::exchange(other.engine_, nullptr)),
      record_(std::exchange(other.record_, nullptr)),
      timeout_(std::move(other.timeout_)) {}

Work& Work::operator=(Work&& other) noexcept {
  if (this != &other) {
    const Work previous(std::move(*this));  // Its destructor waits.
    engine_ = std::exchange(other.engine_, nullptr);
    record_ = std::exchange(other.record_, nullptr);
    timeout_ = std::move(other.timeout_);
  }
  return *this;
}

Work::~Work() {
  if (record_ == nullptr) return;
  if (record_->State() == OperationState::kReleased) return;
  if (!timeout_.ok() && !TestReleased()) {
    engine_->Abort(timeout_);
  } else if (std::uncaught_exceptions() > 0 && !Test()) {
    engine_->Abort(absl::AbortedError(absl::StrCat("an exception destroyed ", Describe())));
  }
  // After the deadline, peers may still read the buffers. Aborting the engine makes them stop. An operation
  // that has failed needs none: its error may be that of an earlier failure, from which the engine was reset.
  const absl::Status status = WaitReleased();
  if (absl::IsDeadlineExceeded(status) && !TestReleased()) engine_->Abort(status);
}

absl::Status Work::RecordTimeout(absl::Status waited, bool is_engine_timeout) {
  timeout_ = is_engine_timeout && absl::IsDeadlineExceeded(waited) ? waited : absl::OkStatus();
  return waited;
}

absl::Status Work::Wait(std::optional<absl::Duration> timeout) {
  return RecordTimeout(engine_->impl_->Wait(record_, EngineShell::Event::kReady, timeout), !timeout);
}

absl::Status Work::WaitReleased(std::optional<absl::Duration> timeout) {
  return RecordTimeout(engine_->impl_->Wait(record_, EngineShell::Event::kReleased, timeout), !timeout);
}

absl::Status Work::Wait(const WaitCheck& check) {
  return RecordTimeout(engine_->impl_->Wait(record_, EngineShell::Event::kReady, std::nullopt, check),
                       /*is_engine_timeout=*/true);
}

absl::Status Work::WaitReleased(const WaitCheck& check) {
  return RecordTimeout(engine_->impl_->Wait(record_, EngineShell::Event::kReleased, std::nullopt, check),
                       /*is_engine_timeout=*/true);
}

void Work::Detach(std::vector<std::shared_ptr<void>> memory) {
  engine_->impl_->KeepAlive(*record_, std::move(memory));
  engine_ = nullptr;
  record_ = nullptr;
}

void Work::Then(std::function<void(const absl::Status&)> done) {
  engine_->impl_->Then(*record_, std::move(done));
}

int Work::source() const {
  // Before that, the thread that runs the engine may write the source.
  return record_->message && record_->IsReady() ? record_->message->source : kAnySource;
}

bool Work::Test() const {
  const OperationState state = record_->State();
  return state != OperationState::kQueued && state != OperationState::kRunning;
}

bool Work::TestReleased() const { return record_->HasEnded(); }

std::string Work::Describe() const { return weft::Describe(*record_); }

std::string Work::DescribeWait() const { return engine_->impl_->DescribeWait(*record_); }

}  // namespace weft
