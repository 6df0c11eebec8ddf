// The state of a sharded model by name: its parameters, and whatever lies parallel to their shards, such as
// an optimizer's moments (anything that is given as ShardViews).
//
// Sharded: every rank has its own pieces, each with the global shape of its array and the elements that it
// holds. Pieces of any mesh fit a model on any other one: PlanStateCopies says which elements come from
// where. Full: whole arrays, gathered one after the other.
//
//   std::vector<StatePiece> pieces = ShardedState(model->Shards());
//   for (StatePiece& piece : ShardedState(optimizer.FirstMoments(), ".exp_avg")) pieces.push_back(piece);
//   …
//   WEFT_RETURN_IF_ERROR(FillShards(model->Shards(), LoadFromState(pieces)));
//   WEFT_RETURN_IF_ERROR(FillShards(optimizer.FirstMoments(), LoadFromState(pieces, ".exp_avg")));
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

// Elements of an array, row-major: `runs` of `run_length`, `run_stride` apart, from `start` on.
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
  Shape shape;           // Of the whole array.
  ElementRuns elements;  // Which ones these are.
  float* data;           // [elements.elements()], end to end; its owner's.
};

// This rank's pieces: the parameters' names with `suffix`.
std::vector<StatePiece> ShardedState(absl::Span<const ShardView> shards, std::string_view suffix = "");

// `count` elements from place `from` of source number `source` to place `to`.
struct StateCopy {
  int source;
  int64_t from;
  int64_t to;
  int64_t count;
};

// What to copy so that `wanted` lies end to end, by ascending `to`. Sources may overlap, as those of replicas
// do: of the same elements those of one of them are taken. Errors: kNotFound (names the first element that
// none of the sources holds).
absl::StatusOr<std::vector<StateCopy>> PlanStateCopies(absl::Span<const ElementRuns> sources,
                                                       const ElementRuns& wanted);

// Reads shards from pieces, sharded or whole, of any mesh; the pieces' data must stay as long as the loader.
// Errors of the loader: kNotFound (no piece of that name and suffix, or an element that none holds),
// kInvalidArgument (pieces of another shape).
ShardLoader LoadFromState(absl::Span<const StatePiece> pieces, std::string_view suffix = "");

enum class StateTarget : uint8_t { kEveryRank, kRankZero };

// Whole arrays in the order of the model's groups: calls `consume` with each, on every rank or on rank 0 of
// the mesh alone. `shards`: the model's Shards, or parallel to them. Holds one array at a time, and where it
// is sent from or put together, two. Errors: kInvalidArgument (shards of other parameters), and what
// `consume` returns on this rank.
using ArrayConsumer = std::function<absl::Status(const Parameter& parameter, absl::Span<const float> values)>;
absl::Status GatherFullState(ShardedModel& model, absl::Span<const ShardView> shards, StateTarget target,
                             const ArrayConsumer& consume);

}  // namespace weft
