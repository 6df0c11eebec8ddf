// Runner of attention over ranks. Compares the results with plain loops in double over the whole sequence.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "context_parallel/schemes/attention_parallel.h"
#include "tests/comm/support/engine_fixture.h"
#include "tests/support/attention_oracle.h"
#include "weft/context_parallel/byte_formulas.h"

namespace weft::testing {

// Inputs of one attention; the same on all ranks.
struct AttentionCase {
  AttentionMask mask;
  std::vector<int64_t> documents;
  AttentionShape shape{.batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 4, .value_dim = 4};
  std::optional<float> scale = {};
  bool heads_first = false;    // Local tensors are views of [batch, heads, tokens, dim].
  bool in_node_memory = true;  // Allocates local tensors in node memory.
  bool returns_lse = true;

  TokenRuns runs() const;  // Runs of the whole sequence.
  std::string Describe() const;
};

// Tensors of a case, row-major over the whole sequence, and the expected results.
struct SolvedCase {
  AttentionCase attention;
  std::vector<double> q, k, v, dout;
  OracleOutputs outputs;
  OracleGradients gradients;

  explicit SolvedCase(const AttentionCase& attention, uint64_t seed = 1);
  // Expected results from the attention kernel on one rank, in f32, for sizes too large for plain loops.
  static SolvedCase ByKernel(const AttentionCase& attention);

 private:
  SolvedCase() = default;
  void DrawInputs(uint64_t seed);
};

// Every mask with lengths that ranks divide and do not divide, one that leaves ranks empty, and a pack of
// documents; with as many KV heads as heads, fewer, and one. The slow builds of sanitizers get every fifth
// case. `step`: gives every step-th case only.
std::vector<SolvedCase> SweepFor(int ranks, int step = 1);

// Schemes for `ranks` ranks: every kind, rotation and balance; hybrids of degree 2.
std::vector<ContextScheme> AllSchemes(int ranks);
// The schemes of AllSchemes that are valid for the mask.
std::vector<ContextScheme> SchemesFor(const AttentionMask& mask, int ranks);

// One rank with an engine and a cache of AttentionParallel objects, one per scheme.
class SchemeRunner {
 public:
  static absl::StatusOr<SchemeRunner> Make(Bootstrap& bootstrap, const EngineOptions& options = {});

  // Results of this rank.
  struct Outcome {
    Tensor out, lse, dq = {}, dk = {}, dv = {};
    // Increase of the engine's counters. Only bytes are valid, since operations may end later.
    EngineCounters forward = {}, backward = {};
  };
  absl::StatusOr<Outcome> Run(const ContextScheme& scheme, const SolvedCase& solved);
  // Runs and compares with the expected results. Tolerances relative to the largest value: forward 1e-5,
  // gradients 2e-5; in 16 bits one rounding more.
  absl::StatusOr<Outcome> Check(const ContextScheme& scheme, const SolvedCase& solved);

  // Waits until all pool memory is released. Then no exchange is in flight and the counters are complete.
  // Errors: kDeadlineExceeded (memory is still in use).
  absl::Status WaitUntilReleased();

  EngineFixture& fixture() { return fixture_; }
  absl::StatusOr<AttentionParallel*> SchemeOf(const ContextScheme& scheme);
  // This rank's part of a whole tensor [batch, tokens, heads, dim].
  absl::StatusOr<Tensor> LocalOf(const AttentionCase& attention, const SequenceLayout& layout,
                                 const std::vector<double>& whole, int64_t heads, int64_t dim);

 private:
  explicit SchemeRunner(Bootstrap& bootstrap) : bootstrap_(&bootstrap) {}
  Bootstrap* bootstrap_;
  EngineFixture fixture_;
  struct Entry {
    ContextScheme scheme;
    std::unique_ptr<AttentionParallel> attention;
  };
  std::vector<Entry> entries_;
};

}  // namespace weft::testing
