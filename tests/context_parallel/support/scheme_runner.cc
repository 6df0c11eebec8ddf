#include "tests/context_parallel/support/scheme_runner.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <thread>
#include <utility>

#include <absl/strings/str_join.h>
#include <gtest/gtest.h>

#include "tests/context_parallel/support/layout_tokens.h"
#include "tests/context_parallel/support/single_schemes.h"
#include "tests/support/schedule_count.h"
#include "tests/support/test_timeout.h"
#include "weft/core/status.h"
#include "weft/memory/pool_tensor.h"
#include "weft/nn/attention_kernel.h"

namespace weft::testing {
namespace {

// Random values that the dtype represents exactly.
std::vector<double> Draw(std::mt19937_64& random, DType dtype, int64_t count) {
  std::normal_distribution<float> normal;
  std::vector<double> values(static_cast<size_t>(count));
  for (double& value : values) {
    const float drawn = normal(random);
    value = dtype == DType::kBF16  ? ToFloat(ToBF16(drawn))
            : dtype == DType::kF16 ? ToFloat(ToF16(drawn))
                                   : drawn;
  }
  return values;
}

// Allowed difference from the expected result: relative to the largest value, for sums in f32, and relative
// to the value itself, for the rounding of a result to its dtype.
struct Tolerance {
  double of_largest;
  double of_value = 0.0;
};

float ScaleOf(const AttentionCase& attention) {
  return attention.scale.value_or(DefaultScale(attention.shape.head_dim));
}

EngineCounters Since(const EngineCounters& before, const EngineCounters& now) {
  EngineCounters difference = now;
  difference.context_bytes -= before.context_bytes;
  difference.copied_bytes -= before.copied_bytes;
  return difference;
}

// Expects `part` to be the rank's part of `whole` [batch, tokens, rows of `width`].
void ExpectPart(const char* name, const std::vector<double>& whole, const std::vector<double>& part,
                const SequenceLayout& layout, int rank, int64_t batch, int64_t width,
                const Tolerance& tolerance) {
  double largest = 1.0;
  for (const double value : whole) largest = std::max(largest, std::isfinite(value) ? std::abs(value) : 0.0);
  const std::vector<int64_t> tokens = TokensOfRank(layout, rank);
  const auto count = static_cast<int64_t>(tokens.size());
  ASSERT_EQ(static_cast<int64_t>(part.size()), batch * count * width) << name;
  for (int64_t row = 0; row < batch * count; ++row) {
    const int64_t token = tokens[static_cast<size_t>(row % count)];
    const double* expected = whole.data() + (row / count * layout.tokens() + token) * width;
    const double* met = part.data() + row * width;
    for (int64_t i = 0; i < width; ++i) {
      // == accepts equal infinities and rejects NaN.
      if (met[i] == expected[i] ||
          std::abs(met[i] - expected[i]) <=
              tolerance.of_largest * largest + tolerance.of_value * std::abs(expected[i]))
        continue;
      FAIL() << name << " of token " << token << " at " << i << " is " << met[i] << " instead of "
             << expected[i];
    }
  }
}

// [batch, heads, tokens] to [batch, tokens, heads].
std::vector<double> TokensFirst(const std::vector<double>& lse, int64_t heads, int64_t tokens) {
  std::vector<double> turned(lse.size());
  for (size_t at = 0; at < lse.size(); ++at) {
    const auto index = static_cast<int64_t>(at);
    const int64_t batch = index / (heads * tokens);
    const int64_t head = index / tokens % heads;
    turned[static_cast<size_t>((batch * tokens + index % tokens) * heads + head)] = lse[at];
  }
  return turned;
}

}  // namespace

TokenRuns AttentionCase::runs() const {
  TokenRuns runs;
  for (const int64_t length : documents) runs.push_back({static_cast<int64_t>(runs.size()), 0, length});
  return runs;
}

std::string AttentionCase::Describe() const {
  return absl::StrCat(mask.causal ? "causal" : "full",
                      mask.keys_before ? absl::StrCat(" keys before ", *mask.keys_before) : "",
                      ", documents ", absl::StrJoin(documents, " "), ", heads ", shape.heads, "/",
                      shape.kv_heads, ", dims ", shape.head_dim, "/", shape.value_dim, ", ",
                      ToAbsl(Name(shape.dtype)), heads_first ? ", heads first" : "");
}

void SolvedCase::DrawInputs(uint64_t seed) {
  const AttentionShape& shape = attention.shape;
  const int64_t rows = shape.batch * TokenCount(attention.runs());
  std::mt19937_64 random(seed);
  q = Draw(random, shape.dtype, rows * shape.heads * shape.head_dim);
  k = Draw(random, shape.dtype, rows * shape.kv_heads * shape.head_dim);
  v = Draw(random, shape.dtype, rows * shape.kv_heads * shape.value_dim);
  dout = Draw(random, shape.dtype, rows * shape.heads * shape.value_dim);
}

SolvedCase::SolvedCase(const AttentionCase& the_case, uint64_t seed) : attention(the_case) {
  DrawInputs(seed);
  const AttentionShape& shape = attention.shape;
  const OracleAttention oracle{.mask = attention.mask,
                               .scale = ScaleOf(attention),
                               .batch = shape.batch,
                               .heads = shape.heads,
                               .kv_heads = shape.kv_heads,
                               .group = shape.heads / shape.kv_heads,
                               .head_dim = shape.head_dim,
                               .value_dim = shape.value_dim,
                               .q_runs = attention.runs(),
                               .k_runs = attention.runs()};
  outputs = OracleForward(oracle, q, k, v);
  gradients = OracleBackward(oracle, q, k, v, dout);
}

SolvedCase SolvedCase::ByKernel(const AttentionCase& the_case) {
  SolvedCase solved;
  solved.attention = the_case;
  solved.DrawInputs(1);
  const AttentionShape& shape = the_case.shape;
  const TokenRuns runs = the_case.runs();
  const int64_t tokens = TokenCount(runs);
  const auto tensor = [&](const std::vector<double>& values, int64_t heads, int64_t dim) {
    const Tensor filled = Tensor::Empty(DType::kF32, {shape.batch, tokens, heads, dim});
    std::copy(values.begin(), values.end(), filled.As<float>());
    return filled;
  };
  const Tensor q = tensor(solved.q, shape.heads, shape.head_dim);
  const Tensor k = tensor(solved.k, shape.kv_heads, shape.head_dim);
  const Tensor v = tensor(solved.v, shape.kv_heads, shape.value_dim);
  const Tensor dout = tensor(solved.dout, shape.heads, shape.value_dim);
  const Tensor out = Tensor::Empty(DType::kF32, dout.shape());
  const Tensor lse = Tensor::Empty(DType::kF32, {shape.batch, shape.heads, tokens});
  const Tensor delta = Tensor::Empty(DType::kF32, lse.shape());
  const Tensor dq = Tensor::Empty(DType::kF32, q.shape());
  const Tensor dk = Tensor::Empty(DType::kF32, k.shape());
  const Tensor dv = Tensor::Empty(DType::kF32, v.shape());
  const AttentionProblem problem{
      .mask = the_case.mask, .scale = ScaleOf(the_case), .group = shape.heads / shape.kv_heads};
  const KeyBlock keys{k.view(), v.view(), &runs};
  AttentionForward(problem, q.view(), runs, {keys}, out.view(), lse.view());
  AttentionDelta(out.view(), dout.view(), delta.view());
  AttentionBackward(problem, q.view(), runs, {keys},
                    {.lse = lse.view(), .delta = delta.view(), .dout = dout.view()},
                    {.dq = dq.view(), .keys = {{dk.view(), dv.view()}}});
  solved.outputs = {ToDoubleValues(out.view()), ToDoubleValues(lse.view())};
  solved.gradients = {ToDoubleValues(dq.view()), ToDoubleValues(dk.view()), ToDoubleValues(dv.view())};
  return solved;
}

std::vector<SolvedCase> SweepFor(int ranks, int step) {
  struct Heads {
    int64_t heads, kv_heads, value_dim;
    bool heads_first;
  };
  const AttentionMask masks[] = {
      {}, {.causal = false, .keys_before = {}}, {.causal = true, .keys_before = 3}};
  const std::vector<int64_t> packs[] = {{int64_t{8} * ranks}, {int64_t{6} * ranks + 1}, {2}, {1, 9, 2, 3}};
  if (ScheduleLimit()) step = 5;
  int number = 0;
  std::vector<SolvedCase> sweep;
  for (const AttentionMask& mask : masks) {
    for (const std::vector<int64_t>& documents : packs) {
      for (const Heads& heads : {Heads{4, 4, 4, false}, Heads{6, 2, 6, false}, Heads{4, 1, 4, true}}) {
        if (number++ % step != 0) continue;
        sweep.emplace_back(AttentionCase{.mask = mask,
                                         .documents = documents,
                                         .shape = {.batch = 2,
                                                   .heads = heads.heads,
                                                   .kv_heads = heads.kv_heads,
                                                   .head_dim = 4,
                                                   .value_dim = heads.value_dim},
                                         .heads_first = heads.heads_first});
      }
    }
  }
  return sweep;
}

std::vector<ContextScheme> AllSchemes(int ranks) {
  std::vector<ContextScheme> schemes = SingleSchemes();
  if (ranks % 2 != 0 || ranks < 4) return schemes;
  for (const LoadBalance balance : {LoadBalance::kNone, LoadBalance::kHeadTail}) {
    const ContextScheme hybrid{.ulysses_degree = 2, .balance = balance};
    schemes.push_back(hybrid);
    for (const RingRotation rotation : {RingRotation::kAllGather, RingRotation::kShift}) {
      schemes.push_back(hybrid);
      schemes.back().ring_rotation = rotation;
    }
  }
  return schemes;
}

std::vector<ContextScheme> SchemesFor(const AttentionMask& mask, int ranks) {
  std::vector<ContextScheme> schemes = AllSchemes(ranks);
  std::erase_if(schemes, [&](const ContextScheme& scheme) { return !scheme.Validate(ranks, mask).ok(); });
  return schemes;
}

absl::StatusOr<SchemeRunner> SchemeRunner::Make(Bootstrap& bootstrap, const EngineOptions& options) {
  SchemeRunner runner(bootstrap);
  WEFT_ASSIGN_OR_RETURN(runner.fixture_, EngineFixture::Make(bootstrap, options));
  return runner;
}

absl::Status SchemeRunner::WaitUntilReleased() {
  const Deadline deadline(fixture_.engine->bootstrap().runtime(), kTestTimeout);
  while (fixture_.pool->in_use_bytes() > 0) {
    if (deadline.HasPassed()) {
      return absl::DeadlineExceededError(
          absl::StrCat(fixture_.pool->in_use_bytes(), " bytes of node memory have not come back"));
    }
    std::this_thread::yield();
  }
  return absl::OkStatus();
}

absl::StatusOr<AttentionParallel*> SchemeRunner::SchemeOf(const ContextScheme& scheme) {
  ContextScheme wanted = scheme;
  // Head-tail balance concerns the layout only. One object for both saves lanes.
  if (wanted.balance == LoadBalance::kHeadTail) wanted.balance = LoadBalance::kNone;
  for (const Entry& entry : entries_) {
    if (entry.scheme == wanted) return entry.attention.get();
  }
  WEFT_ASSIGN_OR_RETURN(auto attention, AttentionParallel::Create(wanted, *fixture_.engine, *fixture_.pool,
                                                                  WorldGroup(*bootstrap_)));
  entries_.push_back({wanted, std::move(attention)});
  return entries_.back().attention.get();
}

absl::StatusOr<Tensor> SchemeRunner::LocalOf(const AttentionCase& attention, const SequenceLayout& layout,
                                             const std::vector<double>& whole, int64_t heads, int64_t dim) {
  const int64_t batch = attention.shape.batch;
  const std::vector<int64_t> tokens = TokensOfRank(layout, bootstrap_->rank());
  const auto count = static_cast<int64_t>(tokens.size());
  Shape shape = {batch, count, heads, dim};
  if (attention.heads_first) std::swap(shape[1], shape[2]);
  Tensor local = Tensor::Empty(attention.shape.dtype, shape);
  if (attention.in_node_memory) {
    WEFT_ASSIGN_OR_RETURN(local, PoolTensor(*fixture_.pool, attention.shape.dtype, shape));
  }
  if (attention.heads_first) local = local.Window(local.view().Permute({0, 2, 1, 3}));
  const TensorView& view = local.view();
  for (int64_t row = 0; row < batch * count * heads; ++row) {
    const int64_t head = row % heads;
    const int64_t index = row / heads % count;
    const int64_t b = row / heads / count;
    const int64_t token = tokens[static_cast<size_t>(index)];
    const auto from = static_cast<size_t>(((b * layout.tokens() + token) * heads + head) * dim);
    const std::vector<float> values(whole.begin() + static_cast<ptrdiff_t>(from),
                                    whole.begin() + static_cast<ptrdiff_t>(from) + dim);
    const int64_t place = b * view.strides[0] + index * view.strides[1] + head * view.strides[2];
    ConvertRun(values.data(), DType::kF32, static_cast<std::byte*>(view.data) + BytesOf(place, view.dtype),
               view.dtype, dim);
  }
  return local;
}

absl::StatusOr<SchemeRunner::Outcome> SchemeRunner::Run(const ContextScheme& scheme,
                                                        const SolvedCase& solved) {
  const AttentionCase& attention = solved.attention;
  const AttentionShape& shape = attention.shape;
  WEFT_ASSIGN_OR_RETURN(AttentionParallel * parallel, SchemeOf(scheme));
  WEFT_ASSIGN_OR_RETURN(const SequenceLayout layout,
                        SequenceLayout::Create(attention.documents, scheme.Split(bootstrap_->size())));
  const auto local_of = [&](const std::vector<double>& whole, int64_t heads, int64_t dim) {
    return LocalOf(attention, layout, whole, heads, dim);
  };
  WEFT_ASSIGN_OR_RETURN(const Tensor q, local_of(solved.q, shape.heads, shape.head_dim));
  WEFT_ASSIGN_OR_RETURN(const Tensor k, local_of(solved.k, shape.kv_heads, shape.head_dim));
  WEFT_ASSIGN_OR_RETURN(const Tensor v, local_of(solved.v, shape.kv_heads, shape.value_dim));
  WEFT_ASSIGN_OR_RETURN(const Tensor dout, local_of(solved.dout, shape.heads, shape.value_dim));
  const AttentionCall call{.mask = attention.mask,
                           .scale = ScaleOf(attention),
                           .sequence = layout.Parts(bootstrap_->rank()),
                           .heads = shape.heads,
                           .kv_heads = shape.kv_heads,
                           .returns_lse = attention.returns_lse,
                           .label = "attention"};
  const EngineCounters start = fixture_.engine->counters();
  WEFT_ASSIGN_OR_RETURN(LaunchedTensor launched_v, parallel->Launch(call, AttentionRole::kValue, v));
  WEFT_ASSIGN_OR_RETURN(LaunchedTensor launched_q, parallel->Launch(call, AttentionRole::kQuery, q));
  WEFT_ASSIGN_OR_RETURN(LaunchedTensor launched_k, parallel->Launch(call, AttentionRole::kKey, k));
  WEFT_ASSIGN_OR_RETURN(
      AttentionParallel::Result result,
      parallel->Forward(call, std::move(launched_q), std::move(launched_k), std::move(launched_v)));
  const EngineCounters middle = fixture_.engine->counters();
  WEFT_ASSIGN_OR_RETURN(AttentionParallel::Gradients gradients,
                        parallel->Backward(call, std::move(result.saved), dout));
  Outcome outcome{.out = result.out, .lse = result.lse};
  WEFT_ASSIGN_OR_RETURN(outcome.dq, gradients.dq.Wait());
  WEFT_ASSIGN_OR_RETURN(outcome.dk, gradients.dk.Wait());
  WEFT_ASSIGN_OR_RETURN(outcome.dv, gradients.dv.Wait());
  outcome.forward = Since(start, middle);
  outcome.backward = Since(middle, fixture_.engine->counters());
  return outcome;
}

absl::StatusOr<SchemeRunner::Outcome> SchemeRunner::Check(const ContextScheme& scheme,
                                                          const SolvedCase& solved) {
  const AttentionShape& shape = solved.attention.shape;
  const int ranks = bootstrap_->size();
  SCOPED_TRACE(absl::StrCat(scheme.Describe(ranks), ": ", solved.attention.Describe()));
  WEFT_ASSIGN_OR_RETURN(const SequenceLayout layout,
                        SequenceLayout::Create(solved.attention.documents, scheme.Split(ranks)));
  WEFT_ASSIGN_OR_RETURN(Outcome outcome, Run(scheme, solved));
  const auto expect = [&](const char* name, const std::vector<double>& whole, const Tensor& part,
                          int64_t width, const Tolerance& tolerance) {
    ExpectPart(name, whole, ToDoubleValues(part.view()), layout, bootstrap_->rank(), shape.batch, width,
               tolerance);
  };
  // In 16 bits results are rounded once. Before that the kernel multiplies in bf16, and dq and dk are
  // computed from a rounded output.
  const double rounding = shape.dtype == DType::kBF16 ? 0x1p-8 : shape.dtype == DType::kF16 ? 0x1p-11 : 0.0;
  const Tolerance forward{1e-5 + rounding / 2, rounding};
  const Tolerance sums{2e-5 + rounding, rounding};
  const Tolerance through_output{2e-5 + 2 * rounding, rounding};
  expect("out", solved.outputs.out, outcome.out, shape.heads * shape.value_dim, forward);
  expect("dq", solved.gradients.dq, outcome.dq, shape.heads * shape.head_dim, through_output);
  expect("dk", solved.gradients.dk, outcome.dk, shape.kv_heads * shape.head_dim, through_output);
  expect("dv", solved.gradients.dv, outcome.dv, shape.kv_heads * shape.value_dim, sums);
  if (solved.attention.returns_lse) {
    const int64_t tokens = layout.TokensOf(bootstrap_->rank());
    ExpectPart("lse", TokensFirst(solved.outputs.lse, shape.heads, layout.tokens()),
               TokensFirst(ToDoubleValues(outcome.lse.view()), shape.heads, tokens), layout,
               bootstrap_->rank(), shape.batch, shape.heads, {1e-5});
  }
  return outcome;
}

}  // namespace weft::testing
