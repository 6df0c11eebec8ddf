#include "weft/core/spans.h"

namespace weft {
namespace {

thread_local SpanRecorder* installed = nullptr;

}  // namespace

ScopedSpanRecorder::ScopedSpanRecorder(SpanRecorder* recorder)
    : previous_(std::exchange(installed, recorder)) {}

ScopedSpanRecorder::~ScopedSpanRecorder() { installed = previous_; }

Span::Span(const char* category, absl::FunctionRef<std::string()> name)
    : recorder_(installed), category_(category) {
  if (recorder_ == nullptr) return;
  name_ = name();
  begin_ns_ = recorder_->NowNs();
}

Span::~Span() {
  if (recorder_ != nullptr) recorder_->Add({category_, std::move(name_), begin_ns_, recorder_->NowNs()});
}

}  // namespace weft
