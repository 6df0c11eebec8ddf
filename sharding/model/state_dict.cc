#include "weft/sharding/state_dict.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <absl/container/flat_hash_map.h>

#include "weft/core/status.h"

namespace weft {
namespace {

ElementRuns RunsOf(const ShardPiece& piece) {
  return {piece.start, piece.runs, piece.run_length, piece.run_stride};
}

// The pieces of one array.
struct Sources {
  Shape shape;
  PieceIndex elements;
  std::vector<const float*> data;
};
using SourcesByName = absl::flat_hash_map<std::string, Sources>;

absl::StatusOr<SourcesByName> SortByName(absl::Span<const StatePiece> pieces) {
  absl::flat_hash_map<std::string, std::vector<const StatePiece*>> by_name;
  for (const StatePiece& piece : pieces) {
    std::vector<const StatePiece*>& array = by_name[piece.name];
    if (!array.empty() && array.front()->shape != piece.shape) {
      return absl::InvalidArgumentError(
          absl::StrCat("pieces of '", piece.name, "' disagree on its shape: ", ToString(array.front()->shape),
                       " and ", ToString(piece.shape)));
    }
    array.push_back(&piece);
  }
  SourcesByName sources;
  for (const auto& [name, array] : by_name) {
    std::vector<ElementRuns> elements;
    std::vector<const float*> data;
    for (const StatePiece* piece : array) {
      elements.push_back(piece->elements);
      data.push_back(piece->data);
    }
    sources.emplace(name, Sources{array.front()->shape, PieceIndex(elements), std::move(data)});
  }
  return sources;
}

absl::Status Read(const SourcesByName& sources, const std::string& name, const Shape& shape, int64_t start,
                  int64_t count, float* out) {
  const auto found = sources.find(name);
  if (found == sources.end()) {
    return absl::NotFoundError(absl::StrCat("the state has no piece of '", name, "'"));
  }
  const Sources& array = found->second;
  if (array.shape != shape) {
    return absl::InvalidArgumentError(absl::StrCat("'", name, "' is ", ToString(array.shape),
                                                   " in the state, but ", ToString(shape), " in the model"));
  }
  const auto copies = array.elements.Plan({start, 1, count, count});
  if (!copies.ok()) return Annotate(copies.status(), absl::StrCat("'", name, "'"));
  for (const StateCopy& copy : *copies) {
    std::copy_n(array.data[static_cast<size_t>(copy.source)] + copy.from, copy.count, out + copy.to);
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<StatePiece> ShardedState(absl::Span<const ShardView> shards, std::string_view suffix) {
  std::vector<StatePiece> pieces;
  pieces.reserve(shards.size());
  for (const ShardView& shard : shards) {
    pieces.push_back({absl::StrCat(shard.parameter->name, ToAbsl(suffix)), shard.parameter->shape,
                      RunsOf(shard.piece), shard.data});
  }
  return pieces;
}

ShardLoader LoadFromState(absl::Span<const StatePiece> pieces, std::string_view suffix) {
  auto sources = std::make_shared<absl::StatusOr<SourcesByName>>(SortByName(pieces));
  return [sources, suffix = std::string(suffix)](const Parameter& parameter, int64_t start, int64_t count,
                                                 float* out) -> absl::Status {
    WEFT_RETURN_IF_ERROR(sources->status());
    return Read(**sources, parameter.name + suffix, parameter.shape, start, count, out);
  };
}

}  // namespace weft
