#include "weft/train/batch_order.h"

#include <absl/strings/str_cat.h>

#include "weft/core/hash.h"

namespace weft {
namespace {

// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014): a bijection that mixes all bits.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

EpochPermutation::EpochPermutation(uint64_t seed, int64_t epoch, int64_t count) : count_(count) {
  uint64_t key = HashCombine(Mix(seed), Mix(static_cast<uint64_t>(epoch)));
  for (uint64_t& round_key : keys_) {
    key = Mix(key);
    round_key = key;
  }
  while (half_bits_ < 31 && (int64_t{1} << (2 * half_bits_)) < count) {
    ++half_bits_;
  }
}

int64_t EpochPermutation::operator()(int64_t position) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<uint64_t>(position);
  // Cycle walking: the network permutes [0, 4^half_bits). Applied again and again from a start in [0, count),
  // it returns to that range, and different starts return at different elements.
  do {
    uint64_t left = value >> half_bits_;
    uint64_t right = value & mask;
    for (const uint64_t key : keys_) {
      const uint64_t next = left ^ (Mix(right ^ key) & mask);
      left = right;
      right = next;
    }
    value = (left << half_bits_) | right;
  } while (value >= static_cast<uint64_t>(count_));
  return static_cast<int64_t>(value);
}

absl::StatusOr<BatchShape> BatchShape::Make(int64_t batch_size, int64_t microbatches,
                                            int64_t data_parallel_size) {
  const int64_t unit = microbatches * data_parallel_size;
  if (batch_size >= 1 && batch_size % unit == 0) {
    return BatchShape{batch_size, microbatches, data_parallel_size};
  }
  const int64_t below = batch_size / unit * unit;
  const std::string nearest = below == 0 ? absl::StrCat(unit) : absl::StrCat(below, " or ", below + unit);
  return absl::InvalidArgumentError(absl::StrCat(
      "--batch-size ", batch_size, " must be a multiple of ", unit, " (", data_parallel_size,
      " data-parallel ranks", microbatches == 1 ? "" : absl::StrCat(" x ", microbatches, " microbatches"),
      "): use ", nearest));
}

SequenceRange BatchShape::Part(int64_t microbatch, int64_t data_parallel_rank) const {
  const int64_t count = sequences_per_rank();
  return {(microbatch * data_parallel_size + data_parallel_rank) * count, count};
}

absl::StatusOr<int64_t> BatchOrder::CountWindows(int64_t tokens, int64_t seq_len) {
  const int64_t windows = tokens < 1 ? 0 : (tokens - 1) / seq_len;
  if (windows == 0) {
    return absl::DataLossError(absl::StrCat("the data has ", tokens,
                                            " tokens, but one sequence of --seq-len ", seq_len, " needs ",
                                            seq_len + 1, ": use more data or a smaller --seq-len"));
  }
  return windows;
}

int64_t BatchOrder::WindowOf(int64_t index) const {
  const int64_t position = index % windows;
  return shuffle ? EpochPermutation(seed, index / windows, windows)(position) : position;
}

}  // namespace weft
