// Tensors that follow a sequence (tokens, targets, positional tables) split among the ranks that share it,
// for a while, and whole tensors from the parts of all ranks.
//
//   {
//     WEFT_ASSIGN_OR_RETURN(ShardedBuffers scope, sharder->ShardBuffers(layout, {&ids, &targets}, {1, 1}));
//     … ids and targets hold this rank's tokens …
//   }  // And here they are whole again, however the scope was left.
//
// Thread safety: none; one thread drives a sharder.
// Collective: Create and UnshardBuffers, by all ranks of the context group in one order. ShardBuffers is
// local. Lifetime: the engine must outlive the sharder, the sharder its scopes.
#pragma once

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

// A scope in which tensors hold this rank's part. When it ends they are again what they were, but for those
// that were excepted. What was written to the parts is lost with them.
//
// Lifetime: the tensors must outlive it.
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
  bool* open_;  // The sharder's; null after a move.
  std::vector<Saved> whole_;
};

class BufferSharder {
 public:
  // `model`: what its parameters hold is no buffer, and refused as such; null: none is known.
  // Errors: kInvalidArgument (this rank is not in the group), kResourceExhausted (lanes).
  static absl::StatusOr<std::unique_ptr<BufferSharder>> Create(CommEngine& engine,
                                                               const ProcessGroup& context,
                                                               Module* model = nullptr);

  // Makes each buffer the part of it that this rank holds, along its own seq dim (negative counts from the
  // end); other copies of a tensor stay whole. `unrestored` ones stay parts after the scope, and their whole
  // memory is given back at once. An error changes no buffer. Errors: kInvalidArgument (not one seq dim for
  // each buffer; a buffer that is null, undefined or listed twice, whose sequence is not the layout's, or
  // that is a parameter's data; an unrestored one that is not among the buffers; a layout for another number
  // of ranks), kFailedPrecondition (a scope of this sharder is open).
  absl::StatusOr<ShardedBuffers> ShardBuffers(const SequenceLayout& layout, absl::Span<Tensor* const> buffers,
                                              absl::Span<const int> seq_dims,
                                              absl::Span<Tensor* const> unrestored = {});

  // The whole tensors, in the order of the sequence, on every rank; parts stay as they are. Waited for.
  // Errors: kInvalidArgument (as above, of parts), kResourceExhausted, and those of the engine.
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
  bool open_ = false;
};

}  // namespace weft
