#include "bench/collective_case.h"

#include <algorithm>
#include <cstdint>

#include <absl/strings/str_cat.h>
#include <absl/types/span.h>

#include "weft/core/strided_copy.h"
#include "weft/core/tensor_view.h"
#include "weft/mesh/world_group.h"

namespace weft::bench {
namespace {

using Style = MpiBaseline::Style;

constexpr float kNoResult = -1;  // Results are not negative.

void Finish(Work work) { OrDie(work.WaitReleased()); }

// A buffer in node memory.
class NodeBuffer {
 public:
  NodeBuffer(NodeHeap& heap, int64_t count)
      : heap_(heap),
        data_(reinterpret_cast<float*>(OrDie(heap.Allocate(static_cast<size_t>(count) * sizeof(float))))) {}
  ~NodeBuffer() { heap_.Free(reinterpret_cast<std::byte*>(data_)); }
  NodeBuffer(const NodeBuffer&) = delete;
  NodeBuffer& operator=(const NodeBuffer&) = delete;
  float* data() const { return data_; }

 private:
  NodeHeap& heap_;
  float* data_;
};

// A case that runs with weft and with Open MPI. weft's buffers are in node memory, MPI's in private memory.
// The variant `weft_ordinary` is weft with MPI's buffers.
class WeftAndMpiCase : public CollectiveCase {
 protected:
  WeftAndMpiCase(CollectiveArena& arena, const std::string& op, int bytes, int64_t input_count,
                 int64_t output_count)
      : CollectiveCase(op, bytes),
        arena_(arena),
        input_(*arena.rank.heap, input_count),
        output_(*arena.rank.heap, output_count),
        mpi_input_(static_cast<size_t>(input_count)),
        mpi_output_(static_cast<size_t>(output_count)) {
    for (size_t i = 0; i < mpi_input_.size(); ++i)
      mpi_input_[i] = static_cast<float>((i + static_cast<size_t>(arena.bootstrap->rank())) % 64);
    std::copy(mpi_input_.begin(), mpi_input_.end(), input_.data());
  }

  // `make(float* input, float* output)` returns a run of weft.
  template <typename MakeRun>
  void AddWeft(const MakeRun& make) {
    variants_["weft"] = make(input_.data(), output_.data());
    variants_["weft_ordinary"] = [this, run = make(mpi_input_.data(), mpi_output_.data()),
                                  is_first = true]() mutable {
      if (is_first) std::fill(mpi_output_.begin(), mpi_output_.end(), kNoResult);
      run();
      if (is_first) CheckSameResults("weft_ordinary");
      is_first = false;
    };
  }
  void AddMpi(const std::function<void(Style)>& run) {
    variants_["blocking"] = [run] { run(Style::kBlocking); };
    variants_["nonblocking"] = [run] { run(Style::kNonblocking); };
  }

  // Runs weft and each variant of MPI once and compares the results. The other variants compare theirs when
  // they first run. Outputs and `mpi_scratch` are cleared before: another run may have left the same result.
  // REQUIRES: called last in the constructor.
  void Check(absl::Span<float> mpi_scratch = {}) {
    std::fill_n(output_.data(), mpi_output_.size(), kNoResult);
    variants_.at("weft")();
    for (const std::string name : {"blocking", "nonblocking"}) {
      std::fill(mpi_scratch.begin(), mpi_scratch.end(), kNoResult);
      std::fill(mpi_output_.begin(), mpi_output_.end(), kNoResult);
      variants_.at(name)();
      CheckSameResults(name);
    }
  }
  // Compares weft's result with that of `other`, which is in MPI's output.
  void CheckSameResults(const std::string& other) {
    const bool same = std::equal(mpi_output_.begin(), mpi_output_.end(), output_.data());
    if (arena_.mpi.TrueEverywhere(same)) return;
    OrDie(absl::InternalError(absl::StrCat("the results of 'weft' and '", other, "' differ")));
  }

  CollectiveArena& arena_;
  NodeBuffer input_, output_;
  std::vector<float> mpi_input_, mpi_output_;
};

int64_t CountOf(const CollectiveArena& arena, int bytes) {
  return bytes / static_cast<int64_t>(sizeof(float)) / arena.ranks() * arena.ranks();
}

class AllGatherCase : public WeftAndMpiCase {
 public:
  AllGatherCase(CollectiveArena& arena, const std::string& op, int bytes)
      : WeftAndMpiCase(arena, op, bytes, CountOf(arena, bytes) / arena.ranks(), CountOf(arena, bytes)) {
    const int64_t total = CountOf(arena, bytes);
    const int64_t part = total / arena.ranks();
    AddWeft([this, total](float* input, float* output) {
      return [this, total, input, output] {
        Finish(arena_.rank.engine->AllGather(arena_.gathers, input, output, DType::kF32, total));
      };
    });
    AddMpi([this, part](Style style) {
      arena_.mpi.AllGather(style, mpi_input_.data(), mpi_output_.data(), part);
    });
    variants_["weft_shared"] = [this, total] { GatherShared(total); };
    Check();
  }

 private:
  // The all-gather into an output that the node's ranks share. Each input is in place in the output. The
  // first call allocates the output and checks the result.
  void GatherShared(int64_t total) {
    const bool is_first = block_.data() == nullptr;
    if (is_first) Share(total);
    auto* const shared = reinterpret_cast<float*>(block_.data());
    Finish(arena_.rank.engine->AllGatherShared(arena_.gathers, OwnPart(total), shared, DType::kF32, total));
    if (!is_first) return;
    const bool same = std::equal(mpi_output_.begin(), mpi_output_.end(), shared);
    if (!arena_.mpi.TrueEverywhere(same))
      OrDie(absl::InternalError("weft's shared result differs from MPI's"));
  }
  void Share(int64_t total) {
    const std::vector<SharedBlockRequest> request = {
        {arena_.NodeRanks(), static_cast<size_t>(total) * sizeof(float)}};
    block_ =
        std::move(OrDie(ShareBlocks(*arena_.bootstrap, *arena_.rank.heap, request, absl::Minutes(1)))[0]);
    std::copy(mpi_input_.begin(), mpi_input_.end(), OwnPart(total));
  }
  float* OwnPart(int64_t total) const {
    return reinterpret_cast<float*>(block_.data()) + total / arena_.ranks() * arena_.bootstrap->rank();
  }

  SharedBlock block_;
};

class ReduceScatterCase : public WeftAndMpiCase {
 public:
  ReduceScatterCase(CollectiveArena& arena, const std::string& op, int bytes)
      : WeftAndMpiCase(arena, op, bytes, CountOf(arena, bytes), CountOf(arena, bytes) / arena.ranks()) {
    const int64_t total = CountOf(arena, bytes);
    const int64_t part = total / arena.ranks();
    AddWeft([this, total](float* input, float* output) {
      return [this, total, input, output] {
        Finish(arena_.rank.engine->ReduceScatter(arena_.scatters, input, output, DType::kF32, total,
                                                 ReduceOp::kSum));
      };
    });
    AddMpi([this, part](Style style) {
      arena_.mpi.ReduceScatter(style, mpi_input_.data(), mpi_output_.data(), part);
    });
    Check();
  }
};

class AllReduceCase : public WeftAndMpiCase {
 public:
  AllReduceCase(CollectiveArena& arena, const std::string& op, int bytes)
      : WeftAndMpiCase(arena, op, bytes, CountOf(arena, bytes), CountOf(arena, bytes)) {
    const int64_t total = CountOf(arena, bytes);
    AddWeft([this, total](float* input, float* output) {
      return [this, total, input, output] {
        Finish(arena_.rank.engine->AllReduce(arena_.reductions, input, output, DType::kF32, total,
                                             ReduceOp::kSum));
      };
    });
    AddMpi([this, total](Style style) {
      arena_.mpi.AllReduce(style, mpi_input_.data(), mpi_output_.data(), total);
    });
    Check();
  }
};

// The exchange of Ulysses: [batch, tokens / P, heads, dim] becomes [batch, tokens, heads / P, dim]. MPI needs
// contiguous parts, so its variants permute before and after.
class AllToAllCase : public WeftAndMpiCase {
 public:
  AllToAllCase(CollectiveArena& arena, const std::string& op, int bytes)
      : WeftAndMpiCase(arena, op, bytes, CountOf(bytes), CountOf(bytes)),
        sent_(static_cast<size_t>(CountOf(bytes))),
        received_(static_cast<size_t>(CountOf(bytes))) {
    const int64_t tokens = CountOf(bytes) / (kBatch * kHeads * kDim);  // Per rank.
    const int64_t heads = kHeads / arena.ranks();
    const Shape split = {kBatch, tokens, kHeads, kDim};
    const Shape whole = {kBatch, tokens * arena.ranks(), heads, kDim};
    const int64_t part = kBatch * tokens * heads * kDim;
    const auto parts_of = [&](float* data, const Shape& shape, int dim, int64_t length) {
      const TensorView all = TensorView::Contiguous(data, DType::kF32, shape);
      std::vector<TensorView> parts;
      parts.reserve(static_cast<size_t>(arena.ranks()));
      for (int rank = 0; rank < arena.ranks(); ++rank) parts.push_back(all.Slice(dim, rank * length, length));
      return parts;
    };
    AddWeft([&](float* input, float* output) {
      return [this, sends = parts_of(input, split, 2, heads), receives = parts_of(output, whole, 1, tokens)] {
        Finish(arena_.rank.engine->AllToAll(arena_.exchanges, sends, receives, DType::kF32));
      };
    });
    const Shape packed = {kBatch, tokens, heads, kDim};
    AddMpi([this, part, packed, sends = parts_of(mpi_input_.data(), split, 2, heads),
            receives = parts_of(mpi_output_.data(), whole, 1, tokens)](Style style) {
      for (size_t i = 0; i < sends.size(); ++i) {
        float* const at = sent_.data() + static_cast<int64_t>(i) * part;
        OrDie(StridedCopy(sends[i], TensorView::Contiguous(at, DType::kF32, packed)));
      }
      arena_.mpi.AllToAll(style, sent_.data(), received_.data(), part);
      for (size_t i = 0; i < receives.size(); ++i) {
        float* const at = received_.data() + static_cast<int64_t>(i) * part;
        OrDie(StridedCopy(TensorView::Contiguous(at, DType::kF32, packed), receives[i]));
      }
    });
    Check(absl::MakeSpan(received_));
  }

 private:
  static constexpr int64_t kBatch = 2;
  static constexpr int64_t kHeads = 16;
  static constexpr int64_t kDim = 64;

  static int64_t CountOf(int bytes) {
    const int64_t token = kBatch * kHeads * kDim;
    return bytes / static_cast<int64_t>(sizeof(float)) / token * token;
  }

  std::vector<float> sent_, received_;
};

// A stream that measures the wire: every rank sends to the rank with its index on the next node, and receives
// as many bytes.
class StreamCase : public CollectiveCase {
 public:
  StreamCase(CollectiveArena& arena, const std::string& op, int bytes)
      : CollectiveCase(op, bytes),
        input_(static_cast<size_t>(bytes) / sizeof(float)),
        output_(static_cast<size_t>(bytes) / sizeof(float)) {
    variants_["nonblocking"] = [this, &arena, distance = static_cast<int>(arena.NodeRanks().size())] {
      arena.mpi.Stream(input_.data(), output_.data(), static_cast<int64_t>(input_.size()), distance,
                       [](int64_t /*begin*/, int64_t /*end*/) {});
    };
  }

 private:
  std::vector<float> input_, output_;
};

template <typename Case>
std::unique_ptr<CollectiveCase> Make(CollectiveArena& arena, const std::string& op, int bytes) {
  return std::make_unique<Case>(arena, op, bytes);
}

}  // namespace

LaneId CollectiveArena::AddLane(LanePurpose purpose) {
  return OrDie(rank.engine->AddLane(WorldGroup(*bootstrap), purpose));
}

std::vector<int> CollectiveArena::NodeRanks() const {
  return bootstrap->node_map().RanksOf(bootstrap->node());
}

const std::function<void()>& CollectiveCase::Variant(const std::string& name) const {
  const auto found = variants_.find(name);
  if (found != variants_.end()) return found->second;
  std::string message = absl::StrCat(op_, " has no variant '", name, "'; expected one of");
  for (const auto& [known, run] : variants_) absl::StrAppend(&message, " ", known);
  OrDie(absl::InvalidArgumentError(message));
  return found->second;
}

std::unique_ptr<CollectiveCase> MakeCase(CollectiveArena& arena, const std::string& op, int bytes) {
  const std::map<std::string, decltype(&Make<StreamCase>)> makers = {
      {"all_gather", Make<AllGatherCase>},
      {"reduce_scatter", Make<ReduceScatterCase>},
      {"all_reduce", Make<AllReduceCase>},
      {"all_to_all", Make<AllToAllCase>},
      {"stream", Make<StreamCase>}};
  const auto maker = makers.find(op);
  if (maker == makers.end()) OrDie(absl::InvalidArgumentError(absl::StrCat("unknown operation '", op, "'")));
  return maker->second(arena, op, bytes);
}

}  // namespace weft::bench
