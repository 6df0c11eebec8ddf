#include "python/bindings/session.h"

#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/time/clock.h>

#include "python/bindings/engine_operation.h"
#include "weft/comm/wire_compression.h"
#include "weft/core/hash.h"
#include "weft/core/status.h"
#include "weft/mesh/runtime.h"

namespace weft::python {
namespace {

// Time that Close gives to unfinished operations.
constexpr absl::Duration kDrainTimeout = absl::Seconds(10);
constexpr absl::Duration kDrainInterval = absl::Milliseconds(1);

std::string RandomNonce() {
  std::random_device source;
  return absl::StrCat(absl::Hex(source(), absl::kZeroPad8), absl::Hex(source(), absl::kZeroPad8));
}

LanePurpose PurposeOf(Stream stream) {
  switch (stream) {
    case Stream::kAllGather:
      return LanePurpose::kAllGather;
    case Stream::kReduceScatter:
      return LanePurpose::kReduceScatter;
    case Stream::kAllReduce:
      return LanePurpose::kAllReduce;
    case Stream::kOther:
      break;
  }
  return LanePurpose::kControl;
}

// The sessions that are not closed. Never destroyed, as threads may outlive static objects.
struct OpenSessions {
  std::mutex mutex;
  std::set<std::shared_ptr<Session>> sessions;
};
OpenSessions& TheOpenSessions() {
  static auto* const sessions = new OpenSessions;
  return *sessions;
}

}  // namespace

bool SessionMemory::is_of_this_process() const { return process == getpid(); }

SessionMemory::~SessionMemory() {
  if (is_of_this_process()) return;
  // Note [Forked children].
  static_cast<void>(blocks.release());
  static_cast<void>(new std::shared_ptr<NodeHeap>(std::move(heap)));
  static_cast<void>(new std::shared_ptr<Bootstrap>(std::move(bootstrap)));
}

absl::StatusOr<std::shared_ptr<Session>> Session::Create(std::shared_ptr<KeyValueStore> store,
                                                         std::unique_ptr<Bootstrap> bootstrap,
                                                         const SessionOptions& options) {
  auto memory = std::make_shared<SessionMemory>();
  memory->process = getpid();
  memory->store = std::move(store);
  memory->bootstrap = std::move(bootstrap);
  WEFT_ASSIGN_OR_RETURN(
      memory->heap, NodeHeap::Create(*memory->bootstrap,
                                     {.segment_bytes = options.segment_bytes, .timeout = options.timeout}));
  memory->blocks = std::make_unique<NodeBlockPool>(
      memory->heap, std::vector<std::shared_ptr<void>>{memory->bootstrap, memory->store},
      NodeBlockPool::Options{.name = "arrays and tensors"});
  EngineOptions engine_options;
  engine_options.timeout = options.timeout;
  WEFT_ASSIGN_OR_RETURN(auto engine, CommEngine::Create(*memory->bootstrap, *memory->heap, engine_options));
  WEFT_ASSIGN_OR_RETURN(const auto nonces,
                        ExchangeBlobs(*memory->bootstrap, "session names", RandomNonce(), options.timeout));
  WireCompressionChoice choice;
  if (options.wire_compression) {
    choice.wire_compression = *options.wire_compression;
  } else {
    WEFT_ASSIGN_OR_RETURN(choice, ChooseWireCompression(*engine));
  }
  std::shared_ptr<Session> session(
      new Session(std::move(memory), std::move(engine), nonces.front(), choice.wire_compression, options));
  OpenSessions& open = TheOpenSessions();
  const std::lock_guard lock(open.mutex);
  open.sessions.insert(session);
  return session;
}

Session::Session(std::shared_ptr<SessionMemory> memory, std::unique_ptr<CommEngine> engine, std::string nonce,
                 WireCompression wire_compression, const SessionOptions& options)
    : options_(options),
      wire_compression_(wire_compression),
      nonce_(std::move(nonce)),
      memory_(std::move(memory)),
      engine_(std::move(engine)),
      completions_(std::make_unique<CompletionThread>()) {}

Session::~Session() {
  if (is_of_this_process()) return;
  // Note [Forked children].
  static_cast<void>(engine_.release());
  static_cast<void>(completions_.release());
}

void Session::Abort(const std::string& cause) const {
  static_cast<void>(WithEngine([&](CommEngine& engine) { engine.Abort(absl::AbortedError(cause)); }));
}

absl::Status Session::Reset() {
  absl::Status reset;
  WEFT_RETURN_IF_ERROR(WithEngine([&](CommEngine& engine) { reset = engine.ResetAfterError(); }));
  return reset;
}

void Session::CloseAll() {
  std::set<std::shared_ptr<Session>> sessions;
  {
    OpenSessions& open = TheOpenSessions();
    const std::lock_guard lock(open.mutex);
    sessions = open.sessions;
  }
  for (const auto& session : sessions) session->Close();
}

absl::Status Session::ForkedError() {
  return absl::FailedPreconditionError(
      "this process is a forked child: the weft session belongs to its parent; communicate in the parent, or "
      "start the child with the method 'spawn' and a process group of its own");
}

absl::Status Session::ClosedError() {
  return absl::FailedPreconditionError(
      "the weft session is closed, as after the end of its process group: make another one");
}

bool Session::closed() const {
  const std::shared_lock lock(engine_mutex_);
  return engine_ == nullptr;
}

void Session::Drain() {
  const std::shared_lock engine_lock(engine_mutex_);
  if (engine_ == nullptr || !engine_->status().ok()) return;
  const absl::Status missed_deadline = MissedDeadline();
  const absl::Duration patience =
      missed_deadline.ok() ? std::min(kDrainTimeout, options_.timeout) : absl::ZeroDuration();
  const Deadline deadline(bootstrap().runtime(), patience);
  absl::Status cause;
  {
    std::unique_lock lock(unready_->mutex);
    if (!unready_->changed.wait_for(lock, absl::ToChronoNanoseconds(deadline.Left()),
                                    [&] { return unready_->operations.empty(); })) {
      cause = missed_deadline.ok()
                  ? absl::AbortedError(absl::StrCat(
                        "rank ", rank(), " closed its session before ", unready_->operations.size(),
                        " operations were ready; wait for all operations before the end"))
                  : missed_deadline;
    }
  }
  while (cause.ok()) {
    const absl::Status released = CheckOperations();
    if (released.ok()) return;
    if (deadline.HasPassed()) {
      cause = released;
    } else {
      absl::SleepFor(kDrainInterval);  // Note [Locks of a closing session].
    }
  }
  engine_->Abort(cause);
}

absl::Status Session::CheckOperations() {
  const std::lock_guard lock(operations_mutex_);
  for (const auto& [operation, _] : operations_) WEFT_RETURN_IF_ERROR(operation->CheckReleased());
  return absl::OkStatus();
}

absl::Status Session::MissedDeadline() {
  {
    const std::lock_guard lock(unready_->mutex);
    for (const auto& [_, missed] : unready_->operations) WEFT_RETURN_IF_ERROR(missed);
  }
  const std::lock_guard lock(operations_mutex_);
  for (const auto& [operation, missed] : operations_) {
    if (!operation->CheckReleased().ok()) WEFT_RETURN_IF_ERROR(missed);
  }
  return absl::OkStatus();
}

int64_t Session::CountUntilReady(Work& work) {
  int64_t number = 0;
  {
    const std::lock_guard lock(unready_->mutex);
    number = unready_->submitted++;
    unready_->operations.emplace(number, absl::OkStatus());
  }
  work.Then([unready = unready_, number](const absl::Status&) {
    const std::lock_guard lock(unready->mutex);
    unready->operations.erase(number);
    unready->changed.notify_all();
  });
  return number;
}

absl::Status Session::OnClose(std::function<bool()> closer) {
  const std::lock_guard lock(closers_mutex_);
  if (is_closing_) return ClosedError();
  closers_.push_back(std::move(closer));
  return absl::OkStatus();
}

bool Session::RunClosers() {
  std::vector<std::function<bool()>> closers;
  {
    const std::lock_guard lock(closers_mutex_);
    is_closing_ = true;
    closers.swap(closers_);
  }
  bool is_engine_free = true;
  for (const auto& closer : closers) is_engine_free = closer() && is_engine_free;
  return is_engine_free;
}

void Session::Close() {
  if (!is_of_this_process()) return;
  if (OwnCall::IsActive()) {
    Abort(absl::StrCat("rank ", rank(), " closed its session in a call that uses it"));
    throw std::runtime_error(
        "a session is used by a call on this thread, such as one that a signal has interrupted or the "
        "callback of a future: close the session after the call");
  }
  const std::lock_guard close_lock(close_mutex_);
  if (closed()) return;
  Drain();
  const bool is_engine_free = RunClosers();
  std::unique_ptr<CommEngine> engine;
  std::vector<std::shared_ptr<void>> memory;
  {
    const std::unique_lock engine_lock(engine_mutex_);
    engine = std::move(engine_);
    const std::lock_guard lock(operations_mutex_);
    for (const auto& [operation, _] : operations_) memory.push_back(operation->Settle(ClosedError()));
  }
  if (is_engine_free) {
    engine.reset();
    memory.clear();
    completions_.reset();
  } else {  // The kept groups use the engine, its buffers and the completion thread.
    static_cast<void>(engine.release());
    static_cast<void>(new std::shared_ptr<Session>(shared_from_this()));
  }
  OpenSessions& open = TheOpenSessions();
  const std::lock_guard lock(open.mutex);
  open.sessions.erase(shared_from_this());
}

absl::StatusOr<std::shared_ptr<std::byte>> Session::Allocate(size_t bytes) const {
  if (!is_of_this_process()) return ForkedError();
  if (closed()) return ClosedError();
  WEFT_ASSIGN_OR_RETURN(auto block, memory_->blocks->Allocate(bytes));
  std::byte* const data = block.get();
  return std::shared_ptr<std::byte>(data, [block = std::move(block), process = getpid()](std::byte*) mutable {
    if (process == getpid()) return;
    static_cast<void>(new std::shared_ptr<std::byte>(std::move(block)));  // Note [Forked children].
  });
}

absl::StatusOr<std::vector<std::string>> Session::ExchangeInStore(const std::string& prefix,
                                                                  const ProcessGroup& group,
                                                                  std::string_view blob,
                                                                  absl::Duration timeout) const {
  if (group.size() == 1) return std::vector<std::string>{std::string(blob)};
  const auto key = [&](int member) { return absl::StrCat(prefix, "/", member); };
  WEFT_RETURN_IF_ERROR(memory_->store->Set(key(group.group_rank), blob));
  std::vector<std::string> keys;
  for (int member = 0; member < group.size(); ++member) keys.push_back(key(member));
  WEFT_ASSIGN_OR_RETURN(const auto found, memory_->store->GetAll(keys, timeout));
  std::vector<std::string> blobs;
  std::vector<int> missing;
  for (size_t member = 0; member < found.size(); ++member) {
    if (!found[member]) missing.push_back(group.ranks[member]);
    blobs.push_back(found[member].value_or(""));
  }
  if (missing.empty()) return blobs;
  return absl::DeadlineExceededError(absl::StrCat(RankList(missing), " did not make the group"));
}

absl::StatusOr<std::shared_ptr<const Session::GroupLanes>> Session::MakeLanes(const std::string& name,
                                                                              const std::vector<int>& ranks,
                                                                              absl::Duration timeout) {
  auto shared = std::make_shared<GroupLanes>();
  GroupLanes& made = *shared;
  made.group.name = name;
  made.group.ranks = ranks;
  const auto own = std::find(ranks.begin(), ranks.end(), rank());
  if (own == ranks.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank(), " is not a member of group ", name, " of ", RankList(ranks)));
  }
  const auto [least, greatest] = std::minmax_element(ranks.begin(), ranks.end());
  if (std::set<int>(ranks.begin(), ranks.end()).size() != ranks.size() || *least < 0 || *greatest >= size()) {
    return absl::InvalidArgumentError(absl::StrCat("group ", name, " of ", RankList(ranks),
                                                   ": give each rank once, from 0 to ", size() - 1));
  }
  made.group.group_rank = static_cast<int>(own - ranks.begin());
  int number = 0;
  {
    const std::lock_guard lock(group_mutex_);
    number = group_counts_[ranks]++;
  }
  made.channel = Hash64(ranks.data(), ranks.size() * sizeof(int), static_cast<uint64_t>(number));
  const std::string prefix = absl::StrCat("groups/", nonce_, "/", number, "/", absl::StrJoin(ranks, "-"));
  const SystemRuntime runtime;
  const Deadline deadline(runtime, timeout);
  for (const Stream stream :
       {Stream::kAllGather, Stream::kReduceScatter, Stream::kAllReduce, Stream::kOther}) {
    const std::string key = absl::StrCat(prefix, "/", static_cast<int>(stream));
    absl::StatusOr<LaneId> lane;
    WEFT_RETURN_IF_ERROR(WithEngine([&](CommEngine& engine) {
      lane = engine.GroupLane(made.group, PurposeOf(stream), number, [&](std::string_view blob) {
        return ExchangeInStore(key, made.group, blob, deadline.Left());
      });
    }));
    if (absl::IsDeadlineExceeded(lane.status())) {
      return Annotate(lane.status(), absl::StrCat("group ", name, " after ", absl::FormatDuration(timeout)));
    }
    WEFT_RETURN_IF_ERROR(lane.status());
    made.lanes.push_back(*lane);
  }
  return shared;
}

void Session::Register(EngineOperation* operation) {
  const std::lock_guard lock(operations_mutex_);
  operations_.emplace(operation, absl::OkStatus());
}

void Session::Unregister(EngineOperation* operation) {
  const std::lock_guard lock(operations_mutex_);
  operations_.erase(operation);
}

void Session::RecordMissedDeadline(EngineOperation* operation, int64_t number, const absl::Status& error) {
  {
    const std::lock_guard lock(unready_->mutex);
    const auto unready = unready_->operations.find(number);
    if (unready != unready_->operations.end()) unready->second = error;
  }
  const std::lock_guard lock(operations_mutex_);
  const auto registered = operations_.find(operation);
  if (registered != operations_.end()) registered->second = error;
}

}  // namespace weft::python
