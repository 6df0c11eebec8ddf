// Attention of a replay over split sequences: the real exchanges, with virtual time for the computation.
//
// Dense attention runs the hooks and schemes of ContextParallel on TimedBlocks. Sparse attention exchanges
// its bytes in one gather for each forward and backward of a layer.
//
// Note [Scaled sequences]
// Problem: in a scaled replay (Note [Scaled replay]), exchanges have 1 / divisor of their bytes.
// Rule: heads have 1 / divisor of their elements; if that is less than one, sequences get shorter, too. Times
//   are those of the unscaled block.
// Cost: the log-sum-exp of a block, which is part of the memory, keeps its size.
//
// Thread safety: none; belongs to the fiber that drives the rank.
// Collective: Create, Forward and Backward, by all ranks of a context group.
// Lifetime: engine and input must outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "src/train/planner/replay.h"
#include "src/train/planner/timed_block.h"
#include "weft/comm/comm_engine.h"
#include "weft/context_parallel/byte_formulas.h"
#include "weft/context_parallel/context_parallel.h"
#include "weft/context_parallel/sequence_layout.h"
#include "weft/memory/buffer_pool.h"

namespace weft {

class ContextReplay {
 public:
  // Null if sequences are not split.
  static absl::StatusOr<std::unique_ptr<ContextReplay>> Create(CommEngine& engine, const ReplayInput& input,
                                                               int64_t divisor, const PassTime& pass_time);
  ~ContextReplay();

  // This rank's share of the tokens.
  double share() const { return share_; }
  // Begins a pass over the model. The last one has ended.
  void BeginPass();
  // A block, with its computation.
  absl::Status Forward(int64_t layer);
  absl::Status Backward(int64_t layer);
  // Node memory of the exchanges: at most since the last ResetPeak.
  size_t peak_bytes() const;
  void ResetPeak();

 private:
  class Blocks;
  ContextReplay(CommEngine& engine, const ReplayInput& input, int64_t divisor, const PassTime& pass_time,
                SequenceLayout layout, int rank);
  absl::Status CreateBlocks(const LlamaConfig& scaled, int64_t seq_len);
  absl::Status CreateGathers();
  absl::Status Gather(bool forward);

  CommEngine& engine_;
  const ReplayInput& input_;
  const int64_t divisor_;
  const PassTime pass_time_;
  const SequenceLayout layout_;  // Of the unscaled sequence.
  const int rank_;               // Of the context group.
  const double share_;

  // Dense attention.
  std::unique_ptr<Blocks> root_;
  std::unique_ptr<ContextParallel> context_;
  std::shared_ptr<const SequenceParts> parts_;
  std::unique_ptr<Invocation> invocation_;
  // Sparse attention.
  BufferPool pool_;
  LaneId lane_;
  ContextCosts gather_costs_;  // Of one layer.
  Buffer buffer_;
};

// Pure. An upper bound of the node memory of the exchanges on a rank.
size_t ContextSegmentBytes(const ReplayInput& input, int64_t divisor);

}  // namespace weft
