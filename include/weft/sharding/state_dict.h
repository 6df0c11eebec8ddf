// State of a sharded model by name: its parameters, and arrays parallel to their shards, such as an
// optimizer's moments (anything given as ShardViews).
//
// Sharded state: every rank has its own pieces. A piece has the global shape of its array and the elements
// that it holds. Pieces of any mesh fit a model on any other mesh: PieceIndex says which elements come
// from which piece. Full state: whole arrays, gathered one after the other.
//
//   std::vector<StatePiece> pieces = ShardedState(model->Shards());
//   for (StatePiece& piece : ShardedState(optimizer.FirstMoments(), ".exp_avg")) pieces.push_back(piece);
//   ...
//   WEFT_RETURN_IF_ERROR(FillShards(model->Shards(), LoadFromState(pieces)));
//   WEFT_RETURN_IF_ERROR(FillShards(optimizer.FirstMoments(), LoadFromState(pieces, ".exp_avg")));
//   optimizer.set_steps(steps);  // The number of its updates, which the pieces do not have.
//
// Before the optimizer is made, set requires_grad of each parameter as it was at the save. A parameter that
// is frozen then has no moments, and those of the save would not be read.
//
// Thread safety: values and free functions.
// Collective: GatherFullState, by all ranks of the model. Outside of passes: Note [When shards may be
// written].
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include "weft/core/tensor_view.h"
#include "weft/sharding/fully_shard.h"
#include "weft/sharding/shard_view.h"

namespace weft {

// Elements of a row-major array: `runs` runs of `run_length` elements, `run_stride` apart, from `start` on.
struct ElementRuns {
  int64_t start = 0;
  int64_t runs = 1;
  int64_t run_length = 0;
  int64_t run_stride = 0;

  int64_t elements() const { return runs * run_length; }
};

// A part of a named array.
struct StatePiece {
  std::string name;
  Shape shape;           // Shape of the whole array.
  ElementRuns elements;  // Elements that the piece holds.
  float* data;           // [elements.elements()], end to end; not owned.
};

// This rank's pieces, named like the parameters with `suffix` appended.
std::vector<StatePiece> ShardedState(absl::Span<const ShardView> shards, std::string_view suffix = "");

// `count` elements from place `from` of source number `source` to place `to`.
struct StateCopy {
  int source;
  int64_t from;
  int64_t to;
  int64_t count;
};

// The places of an array's elements in its sources, which may overlap, as those of replicas do.
//
// Thread safety: a value.
class PieceIndex {
 public:
  explicit PieceIndex(absl::Span<const ElementRuns> sources);
  // Plans the copies that put `wanted` end to end, by ascending `to`. Each element is taken from one source.
  // Errors: kNotFound (names the first element that no source holds).
  absl::StatusOr<std::vector<StateCopy>> Plan(const ElementRuns& wanted) const;

 private:
  // Adjacent elements of one source.
  struct Segment {
    int64_t start;
    int64_t count;
    int source;
    int64_t from;
    int64_t end() const { return start + count; }
  };
  // Plans the copies of elements [start, start + count) to place `to`.
  absl::Status PlanRun(int64_t start, int64_t count, int64_t to, std::vector<StateCopy>& copies) const;

  std::vector<Segment> segments_;  // All elements that the sources hold, ascending, each once.
};

// Loader of shards from pieces, sharded or whole, of any mesh.
// Lifetime: the pieces' data must outlive the loader.
// Errors of the loader: kNotFound (no piece of that name and suffix, or an element that no piece holds),
// kInvalidArgument (pieces of another shape).
ShardLoader LoadFromState(absl::Span<const StatePiece> pieces, std::string_view suffix = "");

enum class StateTarget : uint8_t { kEveryRank, kRankZero };

// Calls `consume` with each whole array, in the order of the model's groups, on every rank or only on rank 0
// of the mesh. `shards`: the model's Shards, or views parallel to them. A parameter without a view on any
// rank is left out, such as one without a moment. Parameters without elements, of which no rank has a view,
// are left out only if others are. Holds one array at a time; two while it is sent or assembled.
// Errors: kInvalidArgument (views of other shards), and the error of `consume` on this rank.
using ArrayConsumer = std::function<absl::Status(const Parameter& parameter, absl::Span<const float> values)>;
absl::Status GatherFullState(ShardedModel& model, absl::Span<const ShardView> shards, StateTarget target,
                             const ArrayConsumer& consume);

}  // namespace weft
