// Which sequences of the data each rank sees at each step. Pure: nothing is read, and no table of the data is
// made.
//
// The data of T tokens has floor((T - 1) / L) windows of L inputs; window i starts at token i L, and its
// targets are one token later. Sequence after sequence of the run takes the next window of its epoch, in
// order or shuffled.
#pragma once

#include <cstdint>

#include <absl/status/statusor.h>

namespace weft {

// A permutation of [0, count) drawn from (seed, epoch). Any element is computed alone, in constant time and
// memory: a Feistel network over the next power of four, walked until it falls into the range.
class EpochPermutation {
 public:
  EpochPermutation(uint64_t seed, int64_t epoch, int64_t count);
  // The element at `position`, in [0, count).
  int64_t operator()(int64_t position) const;

 private:
  static constexpr int kRounds = 6;
  uint64_t keys_[kRounds];
  int64_t count_;
  int half_bits_ = 1;
};

// The contiguous part [first, first + count) of a step's sequences.
struct SequenceRange {
  int64_t first;
  int64_t count;
};

// How a step's batch falls apart. `batch_size` is a multiple of microbatches * data_parallel_size.
struct BatchShape {
  int64_t batch_size;
  int64_t microbatches;
  int64_t data_parallel_size;

  // Errors: kInvalidArgument (names the batch size, what it must be a multiple of, and the nearest that are).
  static absl::StatusOr<BatchShape> Make(int64_t batch_size, int64_t microbatches,
                                         int64_t data_parallel_size);

  int64_t sequences_per_rank() const { return batch_size / (microbatches * data_parallel_size); }
  // Microbatches are contiguous in the batch, and data-parallel ranks are contiguous in a microbatch.
  SequenceRange Part(int64_t microbatch, int64_t data_parallel_rank) const;
};

struct BatchOrder {
  int64_t windows = 0;  // At least 1.
  bool shuffle = true;
  uint64_t seed = 0;

  // Windows of `tokens` tokens at this sequence length. Errors: kDataLoss (there is not one: says what is
  // needed).
  static absl::StatusOr<int64_t> CountWindows(int64_t tokens, int64_t seq_len);

  // The window of sequence `index` of the run, counted over all steps; an epoch's end may fall inside a
  // batch.
  int64_t WindowOf(int64_t index) const;
};

}  // namespace weft
