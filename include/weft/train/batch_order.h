// Assignment of data windows to steps, microbatches and ranks. Pure: reads no data and keeps no table.
//
// Data of T tokens has floor((T - 1) / L) windows of L inputs. Window i starts at token i L; its targets are
// one token later. Each sequence of the run takes the next window of its epoch, in order or shuffled.
#pragma once

#include <cstdint>

#include <absl/status/statusor.h>

namespace weft {

// Pseudorandom permutation of [0, count), determined by (seed, epoch). Each element is computed alone, in
// constant expected time and memory, by a Feistel network on [0, 4^k), with the smallest k >= 1 for which
// 4^k >= count. The network is applied again until the result is below count (cycle walking).
class EpochPermutation {
 public:
  EpochPermutation(uint64_t seed, int64_t epoch, int64_t count);
  // The element at `position`. REQUIRES: `position` is in [0, count).
  int64_t operator()(int64_t position) const;

 private:
  static constexpr int kRounds = 6;
  uint64_t keys_[kRounds];
  int64_t count_;
  int half_bits_ = 1;
};

// Sequences [first, first + count).
struct SequenceRange {
  int64_t first;
  int64_t count;
};

// Division of a step's batch into microbatches and data-parallel ranks.
// Invariant: `batch_size` is a multiple of microbatches * data_parallel_size.
struct BatchShape {
  int64_t batch_size;  // Sequences per step.
  int64_t microbatches;
  int64_t data_parallel_size;

  // Errors: kInvalidArgument (names the batch size, the required divisor, and the nearest valid sizes).
  static absl::StatusOr<BatchShape> Make(int64_t batch_size, int64_t microbatches,
                                         int64_t data_parallel_size);

  int64_t sequences_per_rank() const { return batch_size / (microbatches * data_parallel_size); }
  // The sequences of one rank in one microbatch, counted within the step. Microbatches are contiguous in the
  // batch, and the parts of ranks are contiguous in a microbatch.
  SequenceRange Part(int64_t microbatch, int64_t data_parallel_rank) const;
};

// Assignment of windows to the sequences of a run.
struct BatchOrder {
  int64_t windows = 0;  // At least 1.
  bool shuffle = true;
  uint64_t seed = 0;

  // The number of windows in `tokens` tokens. Errors: kDataLoss (there is no whole window; says how many
  // tokens are needed).
  static absl::StatusOr<int64_t> CountWindows(int64_t tokens, int64_t seq_len);

  // The window of sequence `index` of the run, counted over all steps. An epoch may end inside a batch.
  int64_t WindowOf(int64_t index) const;
};

}  // namespace weft
