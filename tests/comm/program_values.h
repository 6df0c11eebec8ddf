// What every rank puts into an operation of a random program, and what must come out of it, bit by bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <absl/status/status.h>

#include "tests/comm/random_program.h"
#include "weft/mesh/process_group.h"

namespace weft::testing {

// Elements of each rank's part of a gather or a reduction.
std::vector<int64_t> PartsOf(const ProgramOp& op, int ranks);
// What rank `from` sends to rank `to`.
int64_t ExchangeCount(const ProgramOp& op, int from, int to);
// Of the first parts, and of all.
int64_t Sum(const std::vector<int64_t>& parts, int first);
int64_t Sum(const std::vector<int64_t>& parts);

// No two operations share values, nor ranks.
class ProgramValues {
 public:
  ProgramValues(ProcessGroup world, ProcessGroup shard, ProcessGroup replicate);

  // Elements [begin, begin + count) of what a rank of the world contributes to operation `index`.
  static void Fill(int index, DType dtype, int rank, int64_t begin, int64_t count, std::byte* memory);
  // Where values begin that are not those of a gather of changes, but the state that was before.
  static constexpr int64_t kOlderState = int64_t{1} << 20;
  // Where, in a rank's contribution to an exchange, its part for a peer begins.
  static int64_t ExchangeBegin(int peer) { return int64_t{peer} * 4096; }

  // Errors: kDataLoss (names the operation and the element).
  absl::Status CheckGather(int index, const ProgramOp& op, const std::vector<int64_t>& parts,
                           const std::byte* image) const;
  // The own part of a gather.
  absl::Status CheckKept(int index, const ProgramOp& op, const std::vector<int64_t>& parts,
                         const std::byte* kept) const;
  absl::Status CheckReduction(int index, const ProgramOp& op, const std::vector<int64_t>& parts,
                              const std::byte* own) const;
  absl::Status CheckAllReduce(int index, const ProgramOp& op, const std::byte* output) const;
  absl::Status CheckExchange(int index, const ProgramOp& op, const std::vector<int64_t>& parts,
                             const std::byte* output) const;
  absl::Status CheckBroadcast(int index, const ProgramOp& op, const std::byte* output) const;

 private:
  const ProcessGroup world_, shard_, replicate_;
};

}  // namespace weft::testing
