// Inputs and expected results, bit by bit, of the operations of a random program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <absl/status/status.h>

#include "tests/comm/random_programs/random_program.h"
#include "weft/comm/part_ranges.h"
#include "weft/mesh/process_group.h"

namespace weft::testing {

// Elements of each rank's part of a gather or a reduction.
std::vector<int64_t> PartsOf(const ProgramOp& op, int ranks);
// Ranges of these parts in a buffer without gaps. Each part is cut into a few ranges; the ranges of all parts
// lie in an order that depends on `seed`.
std::shared_ptr<const PartRanges> ScatterParts(const std::vector<int64_t>& parts, uint64_t seed);
// Moves the elements of all parts between a buffer in which they lie end to end and one with these ranges.
void CopyToRanges(const PartRanges& ranges, const std::byte* end_to_end, std::byte* buffer,
                  size_t element_bytes);
std::vector<std::byte> PackRanges(const PartRanges& ranges, const std::byte* buffer, size_t element_bytes);
// Number of elements that rank `from` sends to rank `to`.
int64_t ExchangeCount(const ProgramOp& op, int from, int to);
// Number of elements in the first `first` parts, and in all parts.
int64_t Sum(const std::vector<int64_t>& parts, int first);
int64_t Sum(const std::vector<int64_t>& parts);

// Values differ between operations and between ranks.
class ProgramValues {
 public:
  ProgramValues(ProcessGroup world, ProcessGroup shard, ProcessGroup replicate);

  // Writes elements [begin, begin + count) of the contribution of a world rank to operation `index`.
  static void Fill(int index, DType dtype, int rank, int64_t begin, int64_t count, std::byte* memory);
  // Offset of the values that are the delta base of a kGatherDelta.
  static constexpr int64_t kDeltaBase = int64_t{1} << 20;
  // Offset of the part for a peer in a rank's contribution to an exchange.
  static int64_t ExchangeBegin(int peer) { return int64_t{peer} * 4096; }

  // Errors: kDataLoss (names the operation and the element).
  absl::Status CheckGather(int index, const ProgramOp& op, const std::vector<int64_t>& parts,
                           const std::byte* image) const;
  // Checks the delta base of this rank's part after a kGatherDelta.
  absl::Status CheckDeltaBase(int index, const ProgramOp& op, const std::vector<int64_t>& parts,
                              const std::byte* base) const;
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
