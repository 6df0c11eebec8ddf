// Phases of relayed exchanges, at the leader of a node. The halving phase is the whole of a reduce-scatter,
// and the gather phase that of an all-gather; an all-reduce has both, and skips empty messages. See Note
// [Relayed exchanges].
//
// Thread safety: all members are called under the core's lock.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include <absl/status/statusor.h>

#include "src/comm/phases/collective_plan.h"
#include "src/comm/phases/operation.h"
#include "src/comm/phases/relay_rounds.h"
#include "src/comm/phases/streams.h"
#include "src/comm/trees/halving.h"
#include "weft/memory/buffer_pool.h"

namespace weft {

// Sums of the parts of the leader's node over all ranks, by recursive halving: see Note [Halving].
//
// The leader first adds the inputs of its node, and orders the parts by the reversed bits of their nodes'
// numbers. Each class of parts then lies end to end.
class HalvingPhase final : TaskOwner, WholeMove {
 public:
  struct Memory {
    std::vector<const std::byte*> inputs;  // Of the members of the node, ascending.
    std::byte* result;                     // Target of the parts of the node, end to end.
  };
  // `channel`: number of its streams. `mirrored`: the simulation mirrors nodes.
  // Lifetime: `plan` must outlive the phase.
  // Errors: kResourceExhausted (no scratch).
  static absl::StatusOr<std::unique_ptr<HalvingPhase>> Create(OperationContext& context,
                                                              const CollectivePlan& plan,
                                                              int64_t slice_elements, Memory memory,
                                                              int channel, bool mirrored);
  // Not copyable: tasks hold pointers to it.
  HalvingPhase(const HalvingPhase&) = delete;
  HalvingPhase& operator=(const HalvingPhase&) = delete;

  // Advances. Returns true if anything moved.
  absl::StatusOr<bool> Step(OperationContext& context);
  bool is_credited() const { return receives_.all_credited(); }  // All messages to this rank have credits.
  bool complete() const;                                         // The result is valid; no input is read.
  bool drained() const;                                          // In addition, all messages are sent.
  // Adds the bootstrap ranks that the phase waits for.
  void AddAwaited(std::set<int>& ranks) const;

 private:
  // Elements of sums_.
  struct Range {
    int64_t begin;
    int64_t end;
    int64_t count() const { return end - begin; }
  };
  // The parts of a node.
  struct Owner {
    int64_t begin = 0;  // In the inputs.
    int64_t count = 0;
  };
  // An exchange, whose receive is in receives_. An empty message that is skipped has no stream.
  struct Exchange {
    int level;
    const ReceiveStream* received;
    std::optional<SendStream> send;
    ReduceStream merge;  // Of the kept class.
  };
  struct ExchangeMemory {
    Range kept;
    Range sent;
    std::byte* received;
    ReduceTarget target;  // Of the merge.
  };

  HalvingPhase(const GroupPlacement& placement, const CollectivePlan& plan, int64_t slice_elements,
               Memory memory);
  void OnTaskDone(int64_t /*ticket*/) override { node_is_summed_ = true; }
  // Adds the inputs of the node, for the parts of one node after the other.
  void Run() const override;
  void IssueSumOfNode(OperationContext& context);
  Range RangeOf(int level, int number) const;
  absl::Status AddExchanges(OperationContext& context, int node, int channel, bool mirrored);
  void AddExchange(const CreditScheduler::Channel& channel, const HalvingExchange& exchange,
                   ExchangeMemory memory);
  static bool IsSent(const Exchange& exchange) { return !exchange.send || exchange.send->finished(); }
  absl::StatusOr<bool> StepExchanges(OperationContext& context);

  size_t ElementBytes() const { return SizeOf(plan_.dtype); }
  std::byte* At(std::byte* buffer, int64_t element) const {
    return buffer + static_cast<size_t>(element) * ElementBytes();
  }

  const CollectivePlan& plan_;
  const int64_t slice_elements_;
  const Memory memory_;
  const int levels_;
  const ReduceProgram program_;  // Of the inputs.
  std::vector<Owner> owners_;    // By place. See FirstPlaceOfClass.
  std::vector<int64_t> first_;   // By place: its first element in sums_. Ends with the number of elements.
  bool node_is_summed_ = false;
  Buffer sums_;
  Buffer received_;
  OrderedReceives receives_;
  // By level. A deque: tasks and transfers hold pointers to the streams.
  std::deque<Exchange> exchanges_;
};

// Gather of the parts of all nodes, in rounds, to the output of the leader. The leader has a buffer that
// begins with the parts of its own node, followed by those of the next nodes. A round fills the next section
// of it. In the end it copies the parts to the output, and announces that to the other ranks of the node.
class RelayedGatherPhase {
 public:
  // `channel` and `mirrored`: as of HalvingPhase.
  // Lifetime: `plan` must outlive the phase.
  // Errors: kResourceExhausted (no scratch).
  static absl::StatusOr<std::unique_ptr<RelayedGatherPhase>> Create(OperationContext& context,
                                                                    const CollectivePlan& plan,
                                                                    int64_t slice_elements, int channel,
                                                                    bool mirrored);
  // Not copyable: transfers hold pointers to the streams.
  RelayedGatherPhase(const RelayedGatherPhase&) = delete;
  RelayedGatherPhase& operator=(const RelayedGatherPhase&) = delete;

  // Memory for the parts of this rank's node, end to end.
  std::byte* own_parts() { return parts_.data(); }
  // Advances. Returns true if anything moved. `ready`: own_parts() is written, and the output may be.
  absl::StatusOr<bool> Step(OperationContext& context, bool ready);
  bool complete() const { return complete_; }  // The output is valid, and the node knows.
  bool drained() const { return complete_ && rounds_.drained(); }
  // Adds the bootstrap ranks that the phase waits for.
  void AddAwaited(std::set<int>& ranks) const { rounds_.AddAwaited(ranks); }

 private:
  RelayedGatherPhase(const GroupPlacement& placement, const CollectivePlan& plan, int64_t slice_elements,
                     bool mirrored);
  void AddRounds(const OperationContext& context, int channel);
  void Unpack(OperationContext& context);

  size_t ElementBytes() const { return SizeOf(plan_.dtype); }
  std::byte* At(std::byte* buffer, int64_t element) const {
    return buffer + static_cast<size_t>(element) * ElementBytes();
  }

  const CollectivePlan& plan_;
  const int64_t slice_elements_;
  const bool mirrored_;
  const int node_;  // This rank's.
  // By distance of the node: its first element in parts_. Ends with their number.
  std::vector<int64_t> first_;
  Buffer parts_;
  RelayRounds rounds_;
  std::deque<CopyStream> unpacked_;  // To the output, once all parts are there. A deque: as above.
  bool complete_ = false;
};

// A copy within a node, in a relayed exchange.
CopyStream RelayedCopy(const OperationContext& context, const CollectivePlan& plan, int64_t slice_elements,
                       const std::byte* source, std::byte* target, int64_t elements);

// The copy of the leader's output at another rank of its node.
class CopyOfLeader {
 public:
  // `output`: the leader's.
  CopyOfLeader(const OperationContext& context, const CollectivePlan& plan, int64_t slice_elements,
               const std::byte* output)
      : copy_(RelayedCopy(context, plan, slice_elements, output, plan.output, plan.parts.total())) {}
  // Not copyable: tasks hold pointers to the stream.
  CopyOfLeader(const CopyOfLeader&) = delete;
  CopyOfLeader& operator=(const CopyOfLeader&) = delete;

  // Advances once the leader has announced its output. Returns true if anything moved.
  bool Step(OperationContext& context);
  bool complete() const { return leader_announced_ && copy_.finished(); }
  void AddAwaited(const OperationContext& context, std::set<int>& ranks) const;

 private:
  CopyStream copy_;
  bool leader_announced_ = false;
};

}  // namespace weft
