#include "src/comm/engine/engine_impl.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "src/comm/links/shared_memory_link.h"
#include "src/comm/links/sim_node_link.h"
#include "weft/core/status.h"
#include "weft/mesh/rank_cpus.h"

namespace weft {
namespace {

// The watchdog acts later than the deadline of Wait, so that a waiting thread can report the error itself.
constexpr absl::Duration kWatchdogDelay = absl::Seconds(4);

// Longest time for which the destructor waits for messages in flight, and for peers to consume operations.
constexpr absl::Duration kMessagesTimeout = absl::Seconds(5);

// Time that sends of failed operations have to complete.
constexpr absl::Duration kMaxSendWait = absl::Seconds(5);

absl::Status CheckOptions(const EngineOptions& options, Runtime& runtime) {
  // Limit of slice_bytes, max_run_bytes and piece_bytes. MPI counts the bytes of a message in an int.
  constexpr int64_t kMaxBytes = int64_t{1} << 28;
  struct Field {
    const char* name;
    int64_t value;
    int64_t max;
  };
  // Windows are added and doubled.
  constexpr int64_t kMaxWindowBytes = std::numeric_limits<int64_t>::max() / 4;
  for (const Field& field :
       {Field{"slice_bytes", options.slice_bytes, kMaxBytes},
        Field{"piece_bytes", options.piece_bytes, kMaxBytes},
        Field{"lane_window_bytes", options.lane_window_bytes, kMaxWindowBytes},
        Field{"yield_window_bytes", options.yield_window_bytes, kMaxWindowBytes},
        Field{"background_window_bytes", options.background_window_bytes, kMaxWindowBytes},
        Field{"max_budget_bytes", options.max_budget_bytes, kMaxWindowBytes},
        Field{"max_run_bytes", options.max_run_bytes, kMaxBytes},
        Field{"reduce_fan_in", options.reduce_fan_in, std::numeric_limits<int>::max()},
        Field{"reduce_window_bytes", options.reduce_window_bytes, kMaxWindowBytes},
        Field{"recorder_entries", options.recorder_entries, std::numeric_limits<int>::max()}}) {
    if (field.value >= 1 && field.value <= field.max) continue;
    return absl::InvalidArgumentError(absl::StrCat("engine option ", field.name, " is ", field.value,
                                                   "; it must be from 1 to ", field.max));
  }
  if (options.watchdog && runtime.simulation() != nullptr) {
    return absl::InvalidArgumentError(
        "engine option watchdog is on, which simulated ranks do not support; switch it off");
  }
  if (options.timeout.value_or(absl::InfiniteDuration()) > absl::ZeroDuration()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "engine option timeout is ", absl::FormatDuration(*options.timeout), "; it must be positive"));
}

std::string_view Name(Relaying relaying) {
  switch (relaying) {
    case Relaying::kWhereItPays:
      return "where it pays";
    case Relaying::kAlways:
      return "always";
    case Relaying::kNever:
      break;
  }
  return "never";
}

absl::StatusOr<std::unique_ptr<NodeLink>> OpenNodeLink(Bootstrap& bootstrap, NodeHeap& heap,
                                                       absl::Duration timeout) {
  return bootstrap.runtime().simulation() != nullptr ? MakeSimNodeLink(bootstrap, heap, timeout)
                                                     : MakeSharedMemoryLink(bootstrap, heap, timeout);
}

// Gives the next link the same number on all ranks: some may have missed the deadline of an earlier Create,
// in which their peers opened a link. It is also the exchange that the link of a simulated node must outlive.
absl::Status AgreeOnNextLink(Bootstrap& bootstrap, absl::Duration timeout) {
  WEFT_ASSIGN_OR_RETURN(
      const std::vector<std::string> counts,
      ExchangeBlobs(bootstrap, "numbers of links", absl::StrCat(bootstrap.link_count()), timeout));
  int64_t highest = 0;
  for (const std::string& text : counts) {
    int64_t count = 0;
    if (!absl::SimpleAtoi(text, &count))
      return absl::InternalError(absl::StrCat("a rank sent no number of links", kSameVersionRemedy));
    highest = std::max(highest, count);
  }
  bootstrap.SkipLinks(highest);
  return absl::OkStatus();
}
}  // namespace

CommEngine::Impl::Impl(Bootstrap& bootstrap, NodeHeap& heap, EngineOptions options, CreditRules credit_rules)
    : bootstrap_(bootstrap),
      heap_(heap),
      options_(std::move(options)),
      credit_rules_(credit_rules),
      scratch_(heap, "engine scratch"),
      recorder_(bootstrap.rank(), bootstrap.size(), options_.recorder_entries),
      trace_(bootstrap.runtime()),
      forming_(bootstrap.runtime()),
      reset_rounds_(bootstrap) {}

CommEngine::Impl::~Impl() {
  if (!shell_) return;
  shell_->Leave();  // First: peers that wait for this rank to submit more fail, and Drain ends.
  const absl::Status missed = shell_->WithCore([](EngineCore& core) {
    const OperationRecord* const record = core.FindMissedDeadline();
    return record == nullptr ? absl::OkStatus() : core.DeadlineError(*record, "");
  });
  const absl::Duration patience = missed.ok() ? timeout_ : absl::ZeroDuration();
  if (const absl::Status drained = shell_->Drain(patience); !drained.ok())
    Abort(missed.ok() ? drained : missed);
  if (watchdog_) {
    watchdog_->DumpFailure();
    // The program would wait for the missing rank again when it destroys the bootstrap.
    if (const absl::Status failed = status(); absl::IsDeadlineExceeded(failed)) watchdog_->EndProcess(failed);
  }
  // Data that still arrives or leaves must not be in buffers that the caller gets back.
  const Deadline deadline(bootstrap_.runtime(), kMessagesTimeout);
  if (!status().ok()) Report(AwaitAbandonedTransfers(deadline));
  Report(shell_->FinishLeaving(deadline));
  shell_->FlushControlMessages(deadline);
  watchdog_.reset();
  shell_->Stop();
}

absl::Status CommEngine::Impl::ReadOptions() {
  WEFT_RETURN_IF_ERROR(CheckOptions(options_, bootstrap_.runtime()));
  WEFT_ASSIGN_OR_RETURN(timeout_, TimeoutOrDefault(options_.timeout));
  const absl::StatusOr<ShareDomain> domain =
      options_.share_domain.has_value() ? *options_.share_domain : DefaultShareDomain();
  WEFT_RETURN_IF_ERROR(domain.status());
  WEFT_ASSIGN_OR_RETURN(share_domains_, ChooseShareDomains(bootstrap_.node_map(), *domain));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<OptionValue>> CommEngine::Impl::OptionsOfAllRanks(
    const absl::Status& valid) const {
  if (!valid.ok()) return valid;
  const auto bytes = [](const char* name, int64_t value) {
    return OptionValue{name, absl::StrCat(value), absl::StrCat("set EngineOptions::", name)};
  };
  return std::vector<OptionValue>{
      {"the timeout", absl::FormatDuration(timeout_),
       "set the timeout of init_process_group under PyTorch, otherwise WEFT_TIMEOUT_S or "
       "EngineOptions::timeout,"},
      {"the share domain", std::string(Name(share_domains_.kind)),
       "set WEFT_SHARE_DOMAIN, or --share-domain or EngineOptions::share_domain,"},
      bytes("slice_bytes", options_.slice_bytes),
      bytes("piece_bytes", options_.piece_bytes),
      {"relaying", std::string(Name(options_.relaying)), "set EngineOptions::relaying"}};
}

absl::Status CommEngine::Impl::Open() {
  // The first exchange of all ranks tells them if the options of one are invalid.
  const absl::Status valid = ReadOptions();
  WEFT_RETURN_IF_ERROR(AgreeOnOptions(bootstrap_, "engine options", OptionsOfAllRanks(valid), timeout_));
  bool has_core = false;
  if (bootstrap_.runtime().simulation() == nullptr) {
    WEFT_ASSIGN_OR_RETURN(const RankCpus cpus, ExchangeRankCpus(bootstrap_, absl::OkStatus(), timeout_));
    has_core = cpus.Share() >= 1;
    shares_core_ = !has_core;
  }
  WEFT_ASSIGN_OR_RETURN(node_, OpenNodeLink(bootstrap_, heap_, timeout_));
  WEFT_RETURN_IF_ERROR(AgreeOnNextLink(bootstrap_, timeout_));
  WEFT_ASSIGN_OR_RETURN(link_, bootstrap_.OpenLink(timeout_));
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<EngineCore> core, MakeCore(*link_));
  // All ranks of a job have the same transport.
  lane_limit_ = NodeLink::kMaxLanes;
  if (bootstrap_.node_map().node_count() > 1)
    lane_limit_ = std::min(lane_limit_, TagLayout::Of(link_->max_tag(), bootstrap_.node_map()).lanes);
  shell_.emplace(bootstrap_.runtime(), *node_, trace_, bootstrap_.rank(), has_core);
  const absl::Status started = StartThreads(std::move(core));
  // The fibers of a simulation always start.
  return bootstrap_.runtime().simulation() != nullptr ? started
                                                      : AgreeOnStatus(bootstrap_, started, timeout_);
}

absl::Status CommEngine::Impl::StartThreads(std::unique_ptr<EngineCore> core) {
  WEFT_RETURN_IF_ERROR(shell_->Start(std::move(core)));
  if (!options_.watchdog) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(watchdog_, Watchdog::Start(
                                       recorder_,
                                       {absl::ToInt64Nanoseconds(timeout_ + kWatchdogDelay),
                                        options_.dump_folder, bootstrap_.rank(), bootstrap_.size()},
                                       [&runtime = bootstrap_.runtime()] { return runtime.NowNs(); },
                                       [](int code) { std::_Exit(code); }));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<EngineCore>> CommEngine::Impl::MakeCore(WireLink& link) {
  const TagLayout tags = TagLayout::Of(link.max_tag(), bootstrap_.node_map());
  auto core = std::make_unique<EngineCore>(EngineCore::Environment{
      bootstrap_.rank(), bootstrap_.node_map(), *node_, link, tags, scratch_, recorder_, trace_, counters_,
      options_, credit_rules_, shares_core_, bootstrap_.runtime().simulation() != nullptr});
  const MutexLock lock(lanes_mutex_);
  for (size_t index = 0; index < lanes_.size(); ++index) {
    if (lanes_[index] == nullptr) continue;
    const Lane& lane = *lanes_[index];
    WEFT_RETURN_IF_ERROR(core->AddLane(static_cast<int>(index), lane.name, lane.placement, lane.purpose));
  }
  return core;
}
absl::Status CommEngine::Impl::Wait(const std::shared_ptr<OperationRecord>& record, EngineShell::Event event,
                                    std::optional<absl::Duration> timeout, const Work::WaitCheck& check) {
  if (record->lane < 0) return record->error;  // Failed at submission.
  if (record->State() == OperationState::kReleased) {
    shell_->CountPastWait();
    return absl::OkStatus();
  }
  const bool is_longer = timeout && *timeout > timeout_;
  const auto extension = is_longer ? ExtendWatchdog(Watchdog::Task::kWait, *timeout) : std::nullopt;
  absl::Status status = shell_->Wait(*record, event, timeout.value_or(timeout_),
                                     /*asks_for_late_ranks=*/!timeout.has_value(), check);
  if (!timeout || status.ok()) record->missed_deadline = absl::IsDeadlineExceeded(status);
  return status;
}

void CommEngine::Impl::KeepAlive(OperationRecord& record, std::vector<std::shared_ptr<void>> memory) {
  shell_->WithCore([&](EngineCore& core) { core.KeepAlive(record, std::move(memory)); });
}

std::string CommEngine::Impl::DescribeWait(const OperationRecord& record) {
  if (record.lane < 0) return "waits for nothing: it was refused";
  return shell_->WithCore([&](EngineCore& core) { return core.DescribeWait(record); });
}

void CommEngine::Impl::Then(OperationRecord& record, CompletionCallback done) {
  shell_->Then(record, std::move(done));
}

void CommEngine::Impl::Abort(const absl::Status& cause) {
  WEFT_CHECK(!cause.ok(), "the cause of an abort must be an error");
  shell_->WithCore([&](EngineCore& core) { core.Fail(cause); });
}

absl::Status CommEngine::Impl::AwaitAbandonedTransfers(const Deadline& deadline) {
  Runtime& runtime = bootstrap_.runtime();
  const int64_t begin = runtime.NowNs();
  const Deadline send_deadline(runtime, std::min(deadline.Left(), kMaxSendWait));
  while (true) {
    const auto peers = shell_->WithCore([](EngineCore& core) { return core.AbandonedTransfers(); });
    if (peers.senders.empty() && (peers.receivers.empty() || send_deadline.HasPassed()))
      return absl::OkStatus();
    if (deadline.HasPassed()) {
      return absl::DeadlineExceededError(absl::StrCat(
          "data that rank(s) ", absl::StrJoin(peers.senders, ", "), " began to send has not arrived"));
    }
    runtime.SleepFor(WirePollInterval(runtime.NowNs() - begin, kWirePollIntervalNs));
  }
}

absl::Status CommEngine::Impl::ResetAfterError() {
  using Phase = ResetRounds::Phase;
  const Deadline deadline(bootstrap_.runtime(), timeout_);
  const auto agree = [&](Phase phase) { return reset_rounds_.Agree(phase, deadline.Left()); };
  const auto extension = ExtendWatchdog(Watchdog::Task::kReset, timeout_);
  Abort(absl::AbortedError("the engine is being reset"));
  shell_->AwaitRunningTasks();
  WEFT_RETURN_IF_ERROR(shell_->FinishCallbacks(deadline));  // They may submit; none is left in the phases.
  WEFT_RETURN_IF_ERROR(AwaitAbandonedTransfers(deadline));
  reset_rounds_.BeginAttempt();
  while (true) {
    WEFT_ASSIGN_OR_RETURN(const bool quiet, agree(Phase::kQuiet));
    if (!quiet) continue;
    WEFT_ASSIGN_OR_RETURN(FreshCore fresh, MakeFreshCore(deadline));
    const absl::StatusOr<bool> committed = agree(Phase::kCommit);
    if (committed.ok() && !*committed) continue;
    Install(std::move(fresh));
    // Peers that have committed learn from the fresh link that this rank has not. See Note [Reset rounds].
    if (!committed.ok()) Abort(committed.status());
    return committed.status();
  }
}

std::optional<Watchdog::Extension> CommEngine::Impl::ExtendWatchdog(Watchdog::Task task,
                                                                    absl::Duration timeout) {
  if (!watchdog_) return std::nullopt;
  const absl::Duration limit = std::min(timeout + kWatchdogDelay, kLongestWait);
  return watchdog_->Extend(task, bootstrap_.runtime().NowNs() + absl::ToInt64Nanoseconds(limit));
}

absl::StatusOr<CommEngine::Impl::FreshCore> CommEngine::Impl::MakeFreshCore(const Deadline& deadline) {
  FreshCore fresh;
  node_->Reset();
  WEFT_ASSIGN_OR_RETURN(fresh.link, bootstrap_.OpenLink(deadline.Left()));
  WEFT_ASSIGN_OR_RETURN(fresh.core, MakeCore(*fresh.link));
  return fresh;
}

void CommEngine::Impl::Install(FreshCore fresh) {
  recorder_.RecordReset(reset_rounds_.attempt());  // Before the fresh core, which may fail at once.
  std::unique_ptr<EngineCore> failed;
  {
    // No operation gets its sequence before the restart and reaches the fresh core after it.
    const MutexLock lock(lanes_mutex_);
    failed = shell_->Replace(std::move(fresh.core));
    for (const std::unique_ptr<Lane>& lane : lanes_) {
      if (lane != nullptr) lane->next_sequence = 1;
    }
  }
  failed.reset();
  link_ = std::move(fresh.link);  // Last: the failed core uses the old link until it is replaced.
}

EngineCounters CommEngine::Impl::counters() {
  EngineCounters counters = shell_->WithCore([](EngineCore& core) { return core.counters(); });
  const auto logical = [this](LanePurpose purpose) {
    return logical_bytes_[static_cast<size_t>(purpose)].load(std::memory_order_relaxed);
  };
  counters.all_gather_bytes = logical(LanePurpose::kAllGather);
  counters.reduce_scatter_bytes = logical(LanePurpose::kReduceScatter);
  counters.all_reduce_bytes = logical(LanePurpose::kAllReduce);
  counters.context_bytes = logical(LanePurpose::kContext);
  counters.control_bytes = logical(LanePurpose::kControl);
  counters.optimizer_bytes = logical(LanePurpose::kOptimizer);
  counters.wait_ns = shell_->wait_ns();
  return counters;
}

absl::Status CommEngine::Impl::status() {
  return shell_->WithCore([](EngineCore& core) { return core.status(); });
}

}  // namespace weft
