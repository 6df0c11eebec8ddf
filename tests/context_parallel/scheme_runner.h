// Runs attention over ranks, and holds it against plain loops in double over the whole sequence.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/comm/support/engine_fixture.h"
#include "tests/support/attention_oracle.h"
#include "weft/context_parallel/attention_parallel.h"
#include "weft/context_parallel/byte_formulas.h"

namespace weft::testing {

// What attention is computed over; the same on all ranks.
struct AttentionCase {
  AttentionMask mask;
  std::vector<int64_t> documents;
  AttentionShape shape{.batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 4, .value_dim = 4};
  std::optional<float> scale = {};
  bool heads_first = false;    // Local tensors are windows of [batch, heads, tokens, dim].
  bool in_node_memory = true;  // Local tensors lie there.
  bool returns_lse = true;

  TokenRuns runs() const;  // Of the whole sequence.
  std::string Describe() const;
};

// Its tensors, row-major over the whole sequence, and what plain loops make of them.
struct SolvedCase {
  AttentionCase attention;
  std::vector<double> q, k, v, dout;
  OracleOutputs outputs;
  OracleGradients gradients;

  explicit SolvedCase(const AttentionCase& attention, uint64_t seed = 1);
  // By the attention kernel on one rank, in f32: for sizes at which plain loops take too long.
  static SolvedCase ByKernel(const AttentionCase& attention);

 private:
  SolvedCase() = default;
  void DrawInputs(uint64_t seed);
};

// Every mask, over lengths that divide and that do not, one that leaves ranks empty and a pack of documents,
// with as many kv heads as heads, fewer, and one. Sanitizers, whose builds are slow, get every fifth.
std::vector<SolvedCase> SweepFor(int ranks);

// Schemes of at most so many ranks: every kind, rotation and balance; hybrids of degree 2.
std::vector<ContextScheme> AllSchemes(int ranks);
// The schemes that may be asked for with this mask.
std::vector<ContextScheme> SchemesFor(const AttentionMask& mask, int ranks);

// One rank with an engine and any number of schemes on it, each made once.
class SchemeRunner {
 public:
  static absl::StatusOr<SchemeRunner> Make(Bootstrap& bootstrap, const EngineOptions& options = {});

  // This rank's results, as they come.
  struct Outcome {
    Tensor out, lse, dq = {}, dk = {}, dv = {};
    // What the engine counted meanwhile: bytes only, as operations may end later.
    EngineCounters forward = {}, backward = {};
  };
  absl::StatusOr<Outcome> Run(const ContextScheme& scheme, const SolvedCase& solved);
  // The same, and expects the oracle's results: forward within 1e-5, gradients within 2e-5, of the largest
  // value; in bf16 besides that within one rounding.
  absl::StatusOr<Outcome> Check(const ContextScheme& scheme, const SolvedCase& solved);

  // Waits until the pool has everything back: nothing is under way any more, and all is counted. Errors:
  // kDeadlineExceeded (something is still in use, by the caller or for good).
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
  struct Made {
    ContextScheme scheme;
    std::unique_ptr<AttentionParallel> attention;
  };
  std::vector<Made> made_;
};

}  // namespace weft::testing
