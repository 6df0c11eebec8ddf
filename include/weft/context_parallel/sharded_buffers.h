// Temporary shards of tensors that follow a sequence (tokens, targets, positional tables), and whole tensors
// from the shards of all ranks.
//
//   {
//     WEFT_ASSIGN_OR_RETURN(ShardedBuffers scope, sharder->ShardBuffers(layout, {&ids, &targets}, {1, 1}));
//     … ids and targets hold this rank's tokens …
//   }  // ids and targets are whole again, also after an exception or an early return.
//
// Thread safety: none; belongs to one thread.
// Collective: BufferSharder::Create, by all ranks of the engine in the same order, each with its own context
//   group. UnshardBuffers, by all ranks of the context group in the same order. ShardBuffers is local.
// Lifetime: the engine must outlive the sharder, the sharder its scopes.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "weft/comm/comm_engine.h"
#include "weft/context_parallel/sequence_layout.h"
#include "weft/core/tensor.h"
#include "weft/memory/buffer_pool.h"
#include "weft/mesh/process_group.h"
#include "weft/nn/module.h"

namespace weft {

// Scope in which tensors hold this rank's part of their sequence. Its end restores the whole tensors, except
// those listed as `unrestored`. Writes to the parts are lost.
//
// Lifetime: the tensors must outlive the scope.
class [[nodiscard]] ShardedBuffers {
 public:
  ShardedBuffers(ShardedBuffers&& other) noexcept
      : open_(std::exchange(other.open_, nullptr)), whole_(std::exchange(other.whole_, {})) {}
  ShardedBuffers& operator=(ShardedBuffers&&) = delete;
  ~ShardedBuffers();

 private:
  friend class BufferSharder;
  struct Saved {
    Tensor* buffer;
    Tensor whole;
  };
  ShardedBuffers(bool& open, std::vector<Saved> whole) : open_(&open), whole_(std::move(whole)) {}
  bool* open_;  // The sharder's flag; null after a move.
  std::vector<Saved> whole_;
};

class BufferSharder {
 public:
  // `model`: ShardBuffers refuses the data of its parameters; null if there is no model.
  // Errors: those of CommEngine::SharedLane.
  static absl::StatusOr<std::unique_ptr<BufferSharder>> Create(CommEngine& engine,
                                                               const ProcessGroup& context,
                                                               Module* model = nullptr);

  // Replaces each buffer by this rank's part of it, along its own seq dim (negative: counted from the end).
  // Other copies of the tensor stay whole. `unrestored` buffers stay parts after the scope; their whole
  // memory is released at once. After an error all buffers are unchanged. Errors: kInvalidArgument (the
  // number of seq dims is not that of the buffers; a buffer is null, undefined, listed twice, the data of a
  // parameter, or not as long as the layout; an unrestored buffer is not among the buffers; the layout is for
  // another number of ranks), kFailedPrecondition (a scope of this sharder is open).
  absl::StatusOr<ShardedBuffers> ShardBuffers(const SequenceLayout& layout, absl::Span<Tensor* const> buffers,
                                              absl::Span<const int> seq_dims,
                                              absl::Span<Tensor* const> unrestored = {});

  // Returns the whole tensors, in the order of the sequence, on every rank, and blocks until they are
  // complete. The parts stay unchanged. Errors: kInvalidArgument (as for ShardBuffers), kResourceExhausted,
  // those of the engine.
  absl::StatusOr<std::vector<Tensor>> UnshardBuffers(const SequenceLayout& layout,
                                                     absl::Span<const Tensor> parts,
                                                     absl::Span<const int> seq_dims);

 private:
  BufferSharder(CommEngine& engine, const ProcessGroup& context, Module* model, LaneId lane);
  absl::Status CheckLists(const SequenceLayout& layout, size_t buffers, size_t seq_dims) const;
  absl::Status CheckBuffers(absl::Span<Tensor* const> buffers, absl::Span<Tensor* const> unrestored) const;
  absl::Status CheckNoParameter(const TensorView& buffer) const;
  absl::StatusOr<Tensor> Unshard(const SequenceLayout& layout, const TensorView& part, int dim);

  CommEngine& engine_;
  ProcessGroup context_;
  Module* model_;
  LaneId lane_;
  BufferPool pool_;
  bool open_ = false;  // A scope exists.
};

}  // namespace weft
