// Bootstrap, node memory and communication engine of this process, as one object that Python owns.
//
// Note [Forked children]
// Problem: a child of fork() has the session's memory, but none of its threads, and a lock may be held
// forever.
// Rule: a session belongs to the process that created it. In another process, calls fail before they take a
//   lock, and destructors release nothing.
// Without it: a DataLoader's worker that drops a tensor in node memory may hang, or tell the peers of its
// parent that the rank has left.
//
// Note [Locks of a closing session]
// Problem: the memory of an operation belongs to Python, so that its release takes the interpreter's lock. A
//   thread that polls the engine may release memory of any operation. A thread that holds the interpreter's
//   lock may wait for a lock of the session.
// Rule:
//   - Who holds the engine's lock exclusively, or the lock of the operations, releases no memory and does
//     not poll. Close only reads the state of operations: the progress thread polls meanwhile. It destroys
//     the engine, which releases the memory of dropped operations, after it has given up both locks.
//   - A thread that waits for an operation polls with the mutex of that operation. So a thread that may hold
//     the interpreter's lock does not block on this mutex while the operation has not ended.
//   - Threads that poll share the engine's lock. Others that share it must not queue behind a Close that
//     waits for it: std::shared_mutex of glibc lets them pass.
// Without it: session.close() hangs if another thread reads session.closed at that moment, or drops an
//   operation; op.wait() hangs if another thread reads op.source.
//
// Thread safety: any thread may call any member.
// Collective: Create, Reset and Close, by all ranks of the session; MakeLanes, by the members.
// Lifetime: an open session holds itself, as threads of its own must not drop the last reference. Blocks of
//   node memory hold the bootstrap and the heap, and may outlive the session.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <sys/types.h>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "python/bindings/completion_thread.h"
#include "weft/comm/comm_engine.h"
#include "weft/memory/node_block_pool.h"
#include "weft/memory/node_heap.h"
#include "weft/mesh/bootstrap.h"
#include "weft/mesh/key_value_store.h"

namespace weft::python {

class EngineOperation;

// Node memory and the bootstrap that reserved it.
struct SessionMemory {
  ~SessionMemory();
  bool is_of_this_process() const;

  pid_t process = 0;
  std::shared_ptr<KeyValueStore> store;
  std::shared_ptr<Bootstrap> bootstrap;
  std::shared_ptr<NodeHeap> heap;
  std::unique_ptr<NodeBlockPool> blocks;
};

struct SessionOptions {
  // Limit of start-up and of every wait that names no deadline.
  absl::Duration timeout = absl::Seconds(600);
  // Node memory that each rank reserves; 0: see NodeHeap::Options.
  size_t segment_bytes = 0;
  // Compression of f32 and bf16 between nodes, on all ranks the same. Unset: ChooseWireCompression measures.
  std::optional<WireCompression> wire_compression = std::nullopt;
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  // Makes the heap and the engine of `bootstrap`'s ranks, which meet in `store`.
  // Errors: those of NodeHeap::Create and CommEngine::Create.
  static absl::StatusOr<std::shared_ptr<Session>> Create(std::shared_ptr<KeyValueStore> store,
                                                         std::unique_ptr<Bootstrap> bootstrap,
                                                         const SessionOptions& options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Waits up to ten seconds for unfinished operations, and aborts the engine if some remain, at once if one
  // of them has missed its deadline. Waits up to ten seconds for each sharded model in a call of another
  // thread, and as long again after an abort. Each of these waits is at most the timeout. Waits for a group
  // or sharded model that another thread makes, until the deadline of that call. Then ends the engine,
  // unless a closer needs it further. Later calls do nothing.
  // Throws std::runtime_error, and fails all operations, inside an OwnCall of this thread.
  void Close();
  // Closes all sessions of this process. For the end of the interpreter.
  static void CloseAll();
  // True once the session takes no more operations. Its engine may still be ending.
  bool closed() const;
  // Fails all unfinished operations, on all ranks.
  void Abort(const std::string& cause) const;
  // Fails all unfinished operations, and ends the failed state on all ranks together: groups then take
  // operations again. Sharded models stay failed until each is reset.
  // REQUIRES: no other thread submits meanwhile.
  // Errors: those of CommEngine::ResetAfterError; kFailedPrecondition (closed, or a forked child).
  absl::Status Reset();

  // Calls `closer` when the session closes, before the engine ends, without the interpreter's lock. For what
  // uses the engine on its own. If it returns false, the engine is kept until the process ends.
  // Errors: kFailedPrecondition (the session is closing, and takes no closer).
  absl::Status OnClose(std::function<bool()> closer);

  // Lives during a call that uses the engine on its own, and in which this thread may run code of Python, and
  // during callbacks of the CompletionThread. The thread cannot close a session meanwhile.
  class OwnCall {
   public:
    OwnCall() { ++count_; }
    ~OwnCall() { --count_; }
    OwnCall(const OwnCall&) = delete;
    OwnCall& operator=(const OwnCall&) = delete;
    static bool IsActive() { return count_ > 0; }

   private:
    static inline thread_local int count_ = 0;
  };

  // REQUIRES: not closed, and not closed meanwhile: OnClose tells.
  CommEngine& engine() const { return *engine_; }
  NodeHeap& heap() const { return *memory_->heap; }
  Bootstrap& bootstrap() const { return *memory_->bootstrap; }
  int rank() const { return bootstrap().rank(); }
  int size() const { return bootstrap().size(); }
  const SessionOptions& options() const { return options_; }
  // Compression of gathers and reductions between nodes.
  WireCompression wire_compression() const { return wire_compression_; }
  KeyValueStore& store() const { return *memory_->store; }

  // A block of node memory of at least `bytes`. Its owner keeps the heap alive.
  // Errors: kResourceExhausted, kFailedPrecondition (closed, or a forked child).
  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(size_t bytes) const;

  // For EngineGroup and EngineOperation.

  // Lanes of a group of this session's ranks, which no other group uses: the n-th group of some ranks on each
  // of these ranks belong together. Errors: kInvalidArgument, kDeadlineExceeded (names the ranks that have
  // not made the group within `timeout`), those of CommEngine::GroupLane.
  struct GroupLanes {
    ProcessGroup group;
    std::vector<LaneId> lanes;  // By Stream.
    uint64_t channel = 0;       // Of point-to-point messages.
  };
  absl::StatusOr<std::shared_ptr<const GroupLanes>> MakeLanes(const std::string& name,
                                                              const std::vector<int>& ranks,
                                                              absl::Duration timeout);

  // Calls `body` with the engine. Errors: kFailedPrecondition (closed, or a forked child).
  template <typename Body>
  absl::Status WithEngine(const Body& body) const {
    if (!memory_->is_of_this_process()) return ForkedError();
    const std::shared_lock lock(engine_mutex_);
    if (engine_ == nullptr) return ClosedError();
    body(*engine_);
    return absl::OkStatus();
  }
  bool is_of_this_process() const { return memory_->is_of_this_process(); }
  void Register(EngineOperation* operation);
  void Unregister(EngineOperation* operation);
  // Counts an operation until it is *ready* or has failed: Close waits for those that Python has dropped,
  // too. Returns its number.
  int64_t CountUntilReady(Work& work);
  // Close does not wait for operations if an unfinished one has missed its deadline. `number`: that of the
  // registered `operation`.
  void RecordMissedDeadline(EngineOperation* operation, int64_t number, const absl::Status& error);
  CompletionThread& completions() { return *completions_; }
  // The same on all ranks, and different for each session of a store.
  const std::string& nonce() const { return nonce_; }

 private:
  Session(std::shared_ptr<SessionMemory> memory, std::unique_ptr<CommEngine> engine, std::string nonce,
          WireCompression wire_compression, const SessionOptions& options);
  static absl::Status ForkedError();
  static absl::Status ClosedError();
  void Drain();
  // Errors: those of EngineOperation::CheckReleased.
  absl::Status CheckOperations();
  // The error of an unfinished operation that has missed its deadline. REQUIRES: the engine's lock.
  absl::Status MissedDeadline();
  // False if the engine must be kept.
  bool RunClosers();
  absl::StatusOr<std::vector<std::string>> ExchangeInStore(const std::string& prefix,
                                                           const ProcessGroup& group, std::string_view blob,
                                                           absl::Duration timeout) const;

  const SessionOptions options_;
  const WireCompression wire_compression_;
  const std::string nonce_;
  std::shared_ptr<SessionMemory> memory_;
  mutable std::shared_mutex engine_mutex_;  // Exclusive: while the engine ends.
  std::unique_ptr<CommEngine> engine_;
  std::mutex close_mutex_;
  std::mutex group_mutex_;
  std::map<std::vector<int>, int> group_counts_;  // Groups made so far, by their ranks.
  std::mutex closers_mutex_;
  std::vector<std::function<bool()>> closers_;
  bool is_closing_ = false;  // RunClosers has been called. Guarded by closers_mutex_.
  std::mutex operations_mutex_;
  // With the error of a missed deadline, or OK.
  std::map<EngineOperation*, absl::Status> operations_;
  // Operations that are not *ready*, also those that Python has dropped. Shared with callbacks of the engine,
  // which the destructor of the engine may run.
  struct Unready {
    std::mutex mutex;
    std::condition_variable changed;
    int64_t submitted = 0;
    std::map<int64_t, absl::Status> operations;  // By number, as operations_.
  };
  const std::shared_ptr<Unready> unready_ = std::make_shared<Unready>();
  std::unique_ptr<CompletionThread> completions_;
};

}  // namespace weft::python
