#include "src/train/trace/run_trace.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

#include "src/train/config/flag_error.h"
#include "src/train/files/file_io.h"
#include "src/train/trace/chrome_trace.h"
#include "weft/core/status.h"
#include "weft/mesh/bootstrap.h"

namespace weft {
namespace {

// Channel of the trace's messages. Other users of messages choose other channels.
constexpr uint64_t kChannel = 0x7472616365;
enum Tag : int { kClockRequest, kClockAnswer, kEventBytes, kEvents };

constexpr int kClockRounds = 16;

absl::Status SendValue(CommEngine& engine, int peer, Tag tag, int64_t value) {
  Work work = engine.Send({peer, tag, kChannel}, &value, DType::kU8, sizeof(value));
  return work.WaitReleased();
}

absl::StatusOr<int64_t> ReceiveValue(CommEngine& engine, int peer, Tag tag) {
  int64_t value = 0;
  Work work = engine.Receive({peer, tag, kChannel}, &value, DType::kU8, sizeof(value));
  WEFT_RETURN_IF_ERROR(work.WaitReleased());
  return value;
}

}  // namespace

absl::StatusOr<StepRange> TracedSteps(const std::string& text, int64_t next, int64_t last) {
  if (text.empty()) return StepRange{std::min(next + 2, last), std::min(next + 4, last)};
  return StepRange::Parse(text);
}

RunTrace::RunTrace(CommEngine& engine, std::string path, StepRange steps, absl::Duration timeout)
    : engine_(engine),
      path_(std::move(path)),
      steps_(steps),
      timeout_(timeout),
      recorder_([&runtime = engine.bootstrap().runtime()] { return runtime.NowNs(); }) {}

absl::Status RunTrace::BeforeStep(int64_t step) {
  if (step < steps_.first || step > steps_.last) return absl::OkStatus();
  if (!traced_) WEFT_RETURN_IF_ERROR(Start(step));
  traced_->last = step;
  installed_.emplace(&recorder_);
  return absl::OkStatus();
}

absl::Status RunTrace::AfterStep(int64_t step) {
  installed_.reset();
  return step == steps_.last ? Finish() : absl::OkStatus();
}

absl::Status RunTrace::Finish() {
  if (!traced_ || written_) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(Write());
  written_ = traced_;
  return absl::OkStatus();
}

absl::Status RunTrace::Start(int64_t step) {
  Bootstrap& bootstrap = engine_.bootstrap();
  WEFT_ASSIGN_OR_RETURN(const int64_t offset_ns, MeasureClockOffset());
  const int64_t now_ns = bootstrap.runtime().NowNs();
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> times,
                        ExchangeBlobs(bootstrap, "the start of a trace", absl::StrCat(now_ns), timeout_));
  int64_t first_ns = 0;  // On rank 0's clock.
  WEFT_CHECK(absl::SimpleAtoi(times[0], &first_ns), "a time is not a number");
  zero_ns_ = first_ns - offset_ns;
  traced_ = StepRange{step, step};
  engine_.StartTrace();
  return absl::OkStatus();
}

absl::StatusOr<int64_t> RunTrace::MeasureClockOffset() {
  Bootstrap& bootstrap = engine_.bootstrap();
  const NodeMap& nodes = bootstrap.node_map();
  if (bootstrap.rank() == 0) {
    for (int rank = 1; rank < bootstrap.size(); ++rank) {
      if (!nodes.SameNode(0, rank)) WEFT_RETURN_IF_ERROR(AnswerClockRequests(rank));
    }
    return 0;
  }
  if (nodes.SameNode(0, bootstrap.rank())) return 0;
  int64_t shortest_ns = std::numeric_limits<int64_t>::max();
  int64_t offset_ns = 0;
  for (int round = 0; round < kClockRounds; ++round) {
    const int64_t begin_ns = bootstrap.runtime().NowNs();
    WEFT_RETURN_IF_ERROR(SendValue(engine_, 0, kClockRequest, round));
    WEFT_ASSIGN_OR_RETURN(const int64_t answer_ns, ReceiveValue(engine_, 0, kClockAnswer));
    const int64_t trip_ns = bootstrap.runtime().NowNs() - begin_ns;
    if (trip_ns >= shortest_ns) continue;
    shortest_ns = trip_ns;
    offset_ns = answer_ns - (begin_ns + trip_ns / 2);
  }
  return offset_ns;
}

absl::Status RunTrace::AnswerClockRequests(int rank) {
  for (int round = 0; round < kClockRounds; ++round) {
    WEFT_RETURN_IF_ERROR(ReceiveValue(engine_, rank, kClockRequest).status());
    WEFT_RETURN_IF_ERROR(SendValue(engine_, rank, kClockAnswer, engine_.bootstrap().runtime().NowNs()));
  }
  return absl::OkStatus();
}

absl::Status RunTrace::Write() {
  Bootstrap& bootstrap = engine_.bootstrap();
  RankTrace trace{bootstrap.rank(), bootstrap.node(), zero_ns_, recorder_.Take(), engine_.StopTrace()};
  WEFT_ASSIGN_OR_RETURN(const std::string text, GatherEvents(TraceEvents(trace)));
  const absl::Status written =
      bootstrap.rank() == 0 ? NameFlag("trace", WriteWholeFile(path_, text)) : absl::OkStatus();
  return AgreeOnStatus(bootstrap, written, timeout_);
}

absl::StatusOr<std::string> RunTrace::GatherEvents(const std::string& own) {
  const int rank = engine_.bootstrap().rank();
  if (rank != 0) {
    const auto bytes = static_cast<int64_t>(own.size());
    WEFT_RETURN_IF_ERROR(SendValue(engine_, 0, kEventBytes, bytes));
    Work work = engine_.Send({0, kEvents, kChannel}, own.data(), DType::kU8, bytes);
    WEFT_RETURN_IF_ERROR(work.WaitReleased());
    return std::string();
  }
  std::string text = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  absl::StrAppend(&text, own);
  for (int peer = 1; peer < engine_.bootstrap().size(); ++peer) {
    WEFT_ASSIGN_OR_RETURN(const int64_t bytes, ReceiveValue(engine_, peer, kEventBytes));
    std::string events(static_cast<size_t>(bytes), '\0');
    Work work = engine_.Receive({peer, kEvents, kChannel}, events.data(), DType::kU8, bytes);
    WEFT_RETURN_IF_ERROR(work.WaitReleased());
    absl::StrAppend(&text, ",\n", events);
  }
  return absl::StrCat(text, "\n]}\n");
}

}  // namespace weft
