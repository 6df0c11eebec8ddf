// Benchmark of the gathers of sparse attention over ranks: exposed communication and time of a pass,
// forward and backward, where the modules that make the keys launch their gathers, and where each
// attention launches them in place. Ranks share every sequence. Prints the medians over rounds of the
// slowest rank, and their ratio.
//
//   tests/multihost/multihost.sh -n 4 --ppn 2 --rate 1gbit PROGRAM [TOKENS]
//
// PROGRAM is build/release/bench/weft_bench_sparse_context.
//
// Every round measures both, interleaved so that disturbances affect both. A Llama with 2 layers of width
// 512, 8 heads of 64, 2 kv heads, 4 index heads of 32, top-k 512, f32, one thread. Exposed communication
// is the time in which the rank waits for exchanges. Both give the same bits, which the program checks
// first.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bench/or_die.h"
#include "bench/versus.h"
#include "tests/support/rank_engine.h"
#include "weft/context_parallel/context_parallel.h"
#include "weft/context_parallel/sequence_layout.h"
#include "weft/context_parallel/sequence_parts.h"
#include "weft/core/parallel.h"
#include "weft/mesh/mpi_bootstrap.h"
#include "weft/nn/llama.h"
#include "weft/nn/materialize.h"
#include "weft/nn/sparse/sparse_attention.h"

namespace weft::bench {
namespace {

constexpr int64_t kDefaultTokens = 4096;
constexpr int kRounds = 11;
constexpr double kMsPerNs = 1e-6;

LlamaConfig ConfigFor(int64_t tokens) {
  LlamaConfig config;
  config.vocab_size = 256;
  config.layers = 2;
  config.dim = 512;
  config.heads = 8;
  config.kv_heads = 2;
  config.head_dim = 64;
  config.ffn_dim = 1536;
  config.max_positions = tokens;
  config.sparse_attention = SparseAttentionConfig{.top_k = 512, .index_heads = 4, .index_dim = 32};
  return config;
}

// A pass's exposed communication and time, in ms on this rank.
struct Cost {
  double exposed;
  double total;
};

// The model on this rank, with gathers that the makers of the keys launch, or the attentions.
class SplitLlama {
 public:
  SplitLlama(CommEngine& engine, const DeviceMesh& mesh, int64_t tokens, bool has_sources)
      : engine_(engine),
        model_(OrDie(LlamaModel::Create(ConfigFor(tokens)))),
        parameters_(*model_, /*seed=*/1, DType::kF32, DType::kF32),
        context_(OrDie(ContextParallel::Create(engine, *model_, mesh, {"context"}, Scheme()))) {
    if (has_sources) {
      OrDie(ParallelizeLlama(*context_, *model_));
      return;
    }
    for (const DecoderBlock* block : model_->blocks()) {
      OrDie(context_->Parallelize(*block->self_attention().sparse_attention()));
    }
  }

  static ContextScheme Scheme() { return ContextScheme::Gather(LoadBalance::kHeadTail); }

  // Forward and backward over this rank's part of the sequence.
  Cost Pass(const std::shared_ptr<const SequenceParts>& sequence, const Tensor& ids, const Tensor& targets) {
    parameters_.ClearGradients();
    const int64_t before = engine_.counters().wait_ns;
    const double seconds = SecondsOf([&] {
      const float factor = 1.0F / static_cast<float>(TokenCount(sequence->runs()) * sequence->ranks());
      Invocation invocation(/*gradients=*/true, factor);
      invocation.SetSequence(sequence);
      IndexerPassOf(invocation).loss_factor = factor;
      loss_ = OrDie(model_->Forward(invocation, {ids, targets}))[0];
      OrDie(model_->Backward(invocation, {Tensor::Scalar(1.0F)}).status());
    });
    return {static_cast<double>(engine_.counters().wait_ns - before) * kMsPerNs, seconds * 1e3};
  }

  // Loss and gradients of the last pass.
  std::vector<float> Results() const {
    std::vector<float> values = {*loss_.As<float>()};
    for (const auto& parameter : model_->AllParameters()) {
      const auto* gradient = parameter->grad.As<float>();
      values.insert(values.end(), gradient, gradient + parameter->elements());
    }
    return values;
  }

 private:
  CommEngine& engine_;
  std::unique_ptr<LlamaModel> model_;
  MaterializedParameters parameters_;
  std::unique_ptr<ContextParallel> context_;
  Tensor loss_;
};

// The largest value over all ranks.
double Slowest(Bootstrap& bootstrap, double value) {
  const std::string blob(reinterpret_cast<const char*>(&value), sizeof(value));
  for (const std::string& other : OrDie(bootstrap.AllGatherBlob(blob, absl::Seconds(60)))) {
    double of_other = 0;
    std::memcpy(&of_other, other.data(), sizeof(of_other));
    value = std::max(value, of_other);
  }
  return value;
}

Tensor Tokens(int64_t tokens, uint32_t state) {
  Tensor tensor = Tensor::Empty(DType::kI32, {1, tokens});
  for (int64_t i = 0; i < tokens; ++i) {
    state = state * 1664525U + 1013904223U;
    tensor.As<int32_t>()[i] = static_cast<int32_t>(state >> 24);
  }
  return tensor;
}

int Main(int64_t tokens) {
  SetThreadCount(1);
  const std::unique_ptr<Bootstrap> bootstrap = OrDie(MakeMpiBootstrap());
  const testing::RankEngine rank =
      OrDie(testing::RankEngine::Make(*bootstrap, {}, {.segment_bytes = int64_t{512} << 20}));
  const int ranks = bootstrap->size();
  const DeviceMesh mesh = OrDie(DeviceMesh::Create({{"context", ranks}}, ranks));
  const SequenceLayout layout = OrDie(SequenceLayout::Create({tokens}, SplitLlama::Scheme().Split(ranks)));
  const auto sequence = layout.Parts(bootstrap->rank());
  const Tensor ids = OrDie(ExtractPart(Tokens(tokens, 1).view(), 1, layout, bootstrap->rank()));
  const Tensor targets = OrDie(ExtractPart(Tokens(tokens, 2).view(), 1, layout, bootstrap->rank()));
  SplitLlama by_makers(*rank.engine, mesh, tokens, /*has_sources=*/true);
  SplitLlama in_place(*rank.engine, mesh, tokens, /*has_sources=*/false);

  // Warm-up: touches memory and opens connections.
  by_makers.Pass(sequence, ids, targets);
  in_place.Pass(sequence, ids, targets);
  const bool same = by_makers.Results() == in_place.Results();
  if (Slowest(*bootstrap, same ? 0 : 1) != 0) {
    std::fprintf(stderr, "benchmark: gathers launched by makers and in place give different bits\n");
    return 1;
  }
  struct Times {
    std::vector<double> exposed, total;
  } makers, place;
  for (int round = 0; round < kRounds; ++round) {
    for (const bool first : {round % 2 == 0, round % 2 != 0}) {
      SplitLlama& model = first ? by_makers : in_place;
      Times& times = first ? makers : place;
      OrDie(bootstrap->AllGatherBlob("", absl::Seconds(60)).status());
      const Cost cost = model.Pass(sequence, ids, targets);
      times.exposed.push_back(Slowest(*bootstrap, cost.exposed));
      times.total.push_back(Slowest(*bootstrap, cost.total));
    }
  }
  if (bootstrap->rank() != 0) return 0;
  std::printf(
      "%d ranks, %d nodes, %lld tokens; the same bits. Medians of %d rounds, ms of the slowest rank\n\n",
      ranks, bootstrap->node_map().node_count(), static_cast<long long>(tokens), kRounds);
  std::printf("%-28s %10s %10s\n", "gathers launched", "exposed", "pass");
  const auto line = [](const char* name, const Times& times) {
    std::printf("%-28s %10.1f %10.1f\n", name, Median(times.exposed), Median(times.total));
  };
  line("by the makers of the keys", makers);
  line("in place", place);
  std::printf("\nin place / by makers: exposed %.2f, pass %.3f\n",
              Median(place.exposed) / Median(makers.exposed), Median(place.total) / Median(makers.total));
  return 0;
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  const int64_t tokens = argc > 1 ? std::atoll(argv[1]) : weft::bench::kDefaultTokens;
  if (argc > 2 || tokens < 1) {
    std::fprintf(stderr, "usage: %s [TOKENS]\n", argv[0]);
    return 2;
  }
  return weft::bench::Main(tokens);
}
