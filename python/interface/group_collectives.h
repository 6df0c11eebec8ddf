// Interface of a group's collectives, for extension modules that do not link weft.
//
// weft._core implements it over CommEngine, and hands it out as a capsule. A module that links another large
// library, such as libtorch, sees only types of the standard library and enumerations of weft here, so that
// no symbol of weft or abseil exists twice in a process.
//
// Thread safety: any thread may call any member. The calls of a rank on one stream happen in some order,
//   which must be the same on all ranks of the group.
// Collective: every operation but send and receive, by all ranks of the group, in one order for each stream.
// Lifetime: a group and its operations may outlive the session. Operations of a closed session are done.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "weft/comm/element_enums.h"
#include "weft/core/dtype_enum.h"

namespace weft::python {

// The name of the capsule, and with it the version of this interface. The capsule holds a
// std::shared_ptr<GroupCollectives>*.
inline constexpr char kGroupCapsule[] = "weft.GroupCollectives.4";

// Ordered streams of a group. Operations of different streams overlap.
enum class Stream : uint8_t { kAllGather, kReduceScatter, kAllReduce, kOther };

struct Outcome {
  enum class Code : uint8_t {
    kOk,
    kTimeout,  // The operation continues. The message names the ranks that it waits for.
    kFailed,
  };
  Code code = Code::kOk;
  std::string message;

  bool ok() const { return code == Code::kOk; }
};

// A strided tensor of at most five dims. Strides are in elements.
struct Part {
  void* data = nullptr;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};

// One submitted operation.
//
// An operation is *done* when its outputs are valid on this rank and no peer accesses its buffers, or when it
// has failed.
// Lifetime: holds the owners of its buffers until it is done. May be dropped earlier.
class Operation {
 public:
  virtual ~Operation() = default;

  // Neither blocks nor makes progress.
  virtual bool IsDone() = 0;
  // Blocks until done or until the timeout; runs the engine meanwhile. May be called again. About every 50
  // ms calls `between`, without a lock, which may throw to end the wait.
  virtual Outcome Wait(std::chrono::milliseconds timeout, const std::function<void()>& between = nullptr) = 0;
  // Calls `done` once with the outcome, on a thread of the session: when the operation is done, or at the
  // timeout from now. `done` may block and take locks, such as that of the Python interpreter.
  virtual void WhenDone(std::chrono::milliseconds timeout, std::function<void(const Outcome&)> done) = 0;
  // Group rank of the sender, of a receive that is done without an error; otherwise -1.
  virtual int Source() const = 0;
};

class GroupCollectives {
 public:
  virtual ~GroupCollectives() = default;

  // Options that all operations share.
  struct Call {
    Stream stream = Stream::kOther;
    const char* label = "";                      // For messages and the flight recorder.
    std::shared_ptr<void> memory;                // Owner of the buffers.
    ElementKind elements = ElementKind::kPlain;  // Ranks that differ get an error, as with dtypes.
  };
  using OperationPtr = std::shared_ptr<Operation>;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // `counts` are the elements of each rank's part; parts lie end to end in rank order. The buffers of a
  // rank may be in place: `input` is then its part of `output`, or `output` its part of `input`.
  virtual OperationPtr AllGather(Call call, const void* input, void* output, DType type,
                                 const std::vector<int64_t>& counts) = 0;
  virtual OperationPtr ReduceScatter(Call call, const void* input, void* output, DType type,
                                     ReduceOp reduction, const std::vector<int64_t>& counts) = 0;
  virtual OperationPtr AllReduce(Call call, const void* input, void* output, DType type, ReduceOp reduction,
                                 int64_t count) = 0;
  virtual OperationPtr Broadcast(Call call, void* buffer, DType type, int64_t count, int root) = 0;
  // One part for each rank of the group, in both lists; a part without data is empty.
  virtual OperationPtr AllToAll(Call call, DType type, const std::vector<Part>& sends,
                                const std::vector<Part>& receives) = 0;
  virtual OperationPtr Barrier(Call call) = 0;

  // Messages between two ranks of the group, which match by tag, in the order of submission. They use no
  // stream. `from` may be kAnyRank.
  static constexpr int kAnyRank = -1;
  virtual OperationPtr Send(Call call, const void* data, DType type, int64_t count, int to, int tag) = 0;
  virtual OperationPtr Receive(Call call, void* data, DType type, int64_t count, int from, int tag) = 0;

  // Node memory, 64-byte aligned. The collectives read and write it in place. It may outlive the session.
  struct Allocation {
    std::shared_ptr<void> block;  // Null: there is none.
    std::string error;            // Why there is none: no room, a closed session, or a forked child.
    bool is_full = false;         // There is none because there is no room.
  };
  virtual Allocation Allocate(size_t bytes) = 0;
  // Fails all unfinished operations of the session, of all groups, on all ranks.
  virtual void Abort(const std::string& cause) = 0;
  // Closes the session of the group, and thereby those of all its groups.
  virtual void CloseSession() = 0;
};

}  // namespace weft::python
