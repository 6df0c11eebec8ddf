// Protocol of calls: several in flight, calls that do not save, and refused arguments.
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/context_parallel/support/scheme_runner.h"
#include "tests/support/thread_ranks.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 4;

// Tensors of one call on this rank.
struct Pass {
  AttentionCall call;
  Tensor q = {}, k = {}, v = {}, dout = {};
};

absl::StatusOr<Pass> MakePass(SchemeRunner& runner, const ContextScheme& scheme, const SolvedCase& solved,
                              int rank) {
  const AttentionCase& attention = solved.attention;
  const AttentionShape& shape = attention.shape;
  WEFT_ASSIGN_OR_RETURN(const SequenceLayout layout,
                        SequenceLayout::Create(attention.documents, scheme.Split(kRanks)));
  Pass pass{.call = {.mask = attention.mask,
                     .scale = 0.5F,
                     .sequence = layout.Parts(rank),
                     .heads = shape.heads,
                     .kv_heads = shape.kv_heads,
                     .label = "attention"}};
  const auto local_of = [&](const std::vector<double>& whole, int64_t heads, int64_t dim) {
    return runner.LocalOf(attention, layout, whole, heads, dim);
  };
  WEFT_ASSIGN_OR_RETURN(pass.q, local_of(solved.q, shape.heads, shape.head_dim));
  WEFT_ASSIGN_OR_RETURN(pass.k, local_of(solved.k, shape.kv_heads, shape.head_dim));
  WEFT_ASSIGN_OR_RETURN(pass.v, local_of(solved.v, shape.kv_heads, shape.value_dim));
  WEFT_ASSIGN_OR_RETURN(pass.dout, local_of(solved.dout, shape.heads, shape.value_dim));
  return pass;
}

struct Launched {
  LaunchedTensor q, k, v;
};
absl::StatusOr<Launched> LaunchAll(AttentionParallel& attention, const Pass& pass) {
  Launched launched;
  WEFT_ASSIGN_OR_RETURN(launched.q, attention.Launch(pass.call, AttentionRole::kQuery, pass.q));
  WEFT_ASSIGN_OR_RETURN(launched.k, attention.Launch(pass.call, AttentionRole::kKey, pass.k));
  WEFT_ASSIGN_OR_RETURN(launched.v, attention.Launch(pass.call, AttentionRole::kValue, pass.v));
  return launched;
}
absl::StatusOr<AttentionParallel::Result> Forward(AttentionParallel& attention, const Pass& pass,
                                                  Launched launched) {
  return attention.Forward(pass.call, std::move(launched.q), std::move(launched.k), std::move(launched.v));
}
// The values of dq, dk and dv, concatenated.
absl::StatusOr<std::vector<double>> ValuesOf(AttentionParallel::Gradients gradients) {
  std::vector<double> values;
  for (PendingTensor* pending : {&gradients.dq, &gradients.dk, &gradients.dv}) {
    WEFT_ASSIGN_OR_RETURN(const Tensor gradient, pending->Wait());
    const std::vector<double> more = ToDoubleValues(gradient.view());
    values.insert(values.end(), more.begin(), more.end());
  }
  return values;
}

void OnFourRanks(absl::FunctionRef<absl::Status(SchemeRunner&, int rank)> body) {
  RunRanks(NodeMap::OneNode(kRanks), [&](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(SchemeRunner runner, SchemeRunner::Make(bootstrap));
    return body(runner, bootstrap.rank());
  });
}

TEST(AttentionCalls, MayBeInFlightTogether) {
  const AttentionCase attention{.mask = {}, .documents = {26}};
  const SolvedCase one(attention, 1);
  const SolvedCase other(attention, 2);
  OnFourRanks([&](SchemeRunner& runner, int rank) -> absl::Status {
    for (const ContextScheme& scheme : SchemesFor({}, kRanks)) {
      SCOPED_TRACE(scheme.Describe(kRanks));
      WEFT_ASSIGN_OR_RETURN(AttentionParallel * parallel, runner.SchemeOf(scheme));
      WEFT_ASSIGN_OR_RETURN(const Pass a, MakePass(runner, scheme, one, rank));
      WEFT_ASSIGN_OR_RETURN(const Pass b, MakePass(runner, scheme, other, rank));
      std::vector<std::vector<double>> alone;
      for (const Pass* pass : {&a, &b}) {
        WEFT_ASSIGN_OR_RETURN(Launched launched, LaunchAll(*parallel, *pass));
        WEFT_ASSIGN_OR_RETURN(auto result, Forward(*parallel, *pass, std::move(launched)));
        WEFT_ASSIGN_OR_RETURN(auto gradients,
                              parallel->Backward(pass->call, std::move(result.saved), pass->dout));
        WEFT_ASSIGN_OR_RETURN(alone.emplace_back(), ValuesOf(std::move(gradients)));
      }
      WEFT_ASSIGN_OR_RETURN(Launched launched_a, LaunchAll(*parallel, a));
      WEFT_ASSIGN_OR_RETURN(Launched launched_b, LaunchAll(*parallel, b));
      WEFT_ASSIGN_OR_RETURN(auto result_a, Forward(*parallel, a, std::move(launched_a)));
      WEFT_ASSIGN_OR_RETURN(auto result_b, Forward(*parallel, b, std::move(launched_b)));
      WEFT_ASSIGN_OR_RETURN(auto gradients_b, parallel->Backward(b.call, std::move(result_b.saved), b.dout));
      WEFT_ASSIGN_OR_RETURN(auto gradients_a, parallel->Backward(a.call, std::move(result_a.saved), a.dout));
      WEFT_ASSIGN_OR_RETURN(const auto together_a, ValuesOf(std::move(gradients_a)));
      WEFT_ASSIGN_OR_RETURN(const auto together_b, ValuesOf(std::move(gradients_b)));
      EXPECT_EQ(together_a, alone[0]);
      EXPECT_EQ(together_b, alone[1]);
    }
    return absl::OkStatus();
  });
}

TEST(AttentionCalls, SaveNothingUnlessTheCallSaves) {
  const SolvedCase solved(AttentionCase{.mask = {}, .documents = {26}});
  OnFourRanks([&](SchemeRunner& runner, int rank) -> absl::Status {
    for (const ContextScheme& scheme : SchemesFor({}, kRanks)) {
      SCOPED_TRACE(scheme.Describe(kRanks));
      WEFT_ASSIGN_OR_RETURN(AttentionParallel * parallel, runner.SchemeOf(scheme));
      WEFT_ASSIGN_OR_RETURN(Pass pass, MakePass(runner, scheme, solved, rank));
      pass.call.saves = false;
      WEFT_ASSIGN_OR_RETURN(Launched launched, LaunchAll(*parallel, pass));
      WEFT_ASSIGN_OR_RETURN(const auto result, Forward(*parallel, pass, std::move(launched)));
      EXPECT_TRUE(result.saved.empty());
      EXPECT_FALSE(result.lse.defined()) << "the call did not ask for it";
      EXPECT_THAT(parallel->Backward(pass.call, result.saved, pass.dout).status(),
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("set `saves`")));
    }
    return absl::OkStatus();
  });
}

TEST(AttentionCalls, DoNotWaitForReturnedGradientsInARing) {
  const SolvedCase solved(AttentionCase{.mask = {}, .documents = {26}});
  OnFourRanks([&](SchemeRunner& runner, int rank) -> absl::Status {
    for (const LoadBalance balance : {LoadBalance::kNone, LoadBalance::kHeadTail}) {
      const ContextScheme ring = ContextScheme::Ring(RingRotation::kShift, balance);
      SCOPED_TRACE(ring.Describe(kRanks));
      WEFT_ASSIGN_OR_RETURN(AttentionParallel * parallel, runner.SchemeOf(ring));
      WEFT_ASSIGN_OR_RETURN(const Pass pass, MakePass(runner, ring, solved, rank));
      WEFT_ASSIGN_OR_RETURN(Launched launched, LaunchAll(*parallel, pass));
      WEFT_ASSIGN_OR_RETURN(auto result, Forward(*parallel, pass, std::move(launched)));
      WEFT_ASSIGN_OR_RETURN(auto gradients,
                            parallel->Backward(pass.call, std::move(result.saved), pass.dout));
      // In a contiguous causal sequence no other rank attends to the keys of the last rank.
      const bool peers_attend = balance == LoadBalance::kHeadTail || rank != kRanks - 1;
      EXPECT_FALSE(gradients.dq.has_finish());
      EXPECT_EQ(gradients.dk.has_finish(), peers_attend);
      EXPECT_EQ(gradients.dv.has_finish(), peers_attend);
    }
    // All were abandoned in flight. Their memory must be released nevertheless.
    return runner.WaitUntilReleased();
  });
}

TEST(AttentionCalls, MayBeAbandonedAfterTheirLaunch) {
  const SolvedCase solved(AttentionCase{.mask = {}, .documents = {26}});
  OnFourRanks([&](SchemeRunner& runner, int rank) -> absl::Status {
    for (const ContextScheme& scheme : SchemesFor({}, kRanks)) {
      SCOPED_TRACE(scheme.Describe(kRanks));
      WEFT_ASSIGN_OR_RETURN(AttentionParallel * parallel, runner.SchemeOf(scheme));
      {
        WEFT_ASSIGN_OR_RETURN(const Pass pass, MakePass(runner, scheme, solved, rank));
        WEFT_RETURN_IF_ERROR(LaunchAll(*parallel, pass).status());
      }
      WEFT_RETURN_IF_ERROR(runner.WaitUntilReleased());
      WEFT_RETURN_IF_ERROR(runner.Check(scheme, solved).status());
    }
    return absl::OkStatus();
  });
}

TEST(AttentionCalls, RefuseTensorsThatContradictEachOther) {
  const SolvedCase solved(AttentionCase{.mask = {}, .documents = {24}});
  OnFourRanks([&](SchemeRunner& runner, int rank) -> absl::Status {
    for (const ContextScheme& scheme : SchemesFor({}, kRanks)) {
      SCOPED_TRACE(scheme.Describe(kRanks));
      WEFT_ASSIGN_OR_RETURN(AttentionParallel * parallel, runner.SchemeOf(scheme));
      WEFT_ASSIGN_OR_RETURN(const Pass pass, MakePass(runner, scheme, solved, rank));
      const Shape& k = pass.k.shape();
      for (const Shape& other : {Shape{k[0] + 1, k[1], k[2], k[3]}, Shape{k[0], k[1], k[2], k[3] + 1}}) {
        Pass contradicting = pass;
        contradicting.k = Tensor::Zeros(DType::kF32, other);
        WEFT_ASSIGN_OR_RETURN(Launched launched, LaunchAll(*parallel, contradicting));
        EXPECT_THAT(Forward(*parallel, contradicting, std::move(launched)).status(),
                    StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the same batch, q and k")));
      }
    }
    return runner.WaitUntilReleased();
  });
}

TEST(AttentionCalls, RefuseTensorsThatContradictTheCall) {
  const SolvedCase solved(AttentionCase{.mask = {}, .documents = {24}});
  OnFourRanks([&](SchemeRunner& runner, int rank) -> absl::Status {
    const ContextScheme ring = ContextScheme::Ring();
    WEFT_ASSIGN_OR_RETURN(AttentionParallel * parallel, runner.SchemeOf(ring));
    WEFT_ASSIGN_OR_RETURN(const Pass pass, MakePass(runner, ring, solved, rank));
    const auto refusal = [&](const AttentionCall& call, const Tensor& local) {
      return parallel->Launch(call, AttentionRole::kKey, local).status();
    };
    const auto invalid = [](const char* text) {
      return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
    };
    AttentionCall call = pass.call;
    EXPECT_THAT(refusal(call, Tensor::Zeros(DType::kF32, {2, 5, 2, 4})),
                invalid("k of attention is [2, 5, 2, 4]: expected [batch, 6, 2, dim]"));
    EXPECT_THAT(refusal(call, pass.q), invalid("expected [batch, 6, 2, dim]"));
    call.sequence = nullptr;
    EXPECT_THAT(refusal(call, pass.k), invalid("split over 0 ranks, but the context group has 4"));
    WEFT_ASSIGN_OR_RETURN(const SequenceLayout halves, SequenceLayout::Contiguous(24, 2));
    call.sequence = halves.Parts(0);
    EXPECT_THAT(refusal(call, pass.k), invalid("split over 2 ranks, but the context group has 4"));
    auto others = std::make_shared<SequenceParts>(*pass.call.sequence);
    others->own = (rank + 1) % kRanks;
    call.sequence = others;
    EXPECT_THAT(refusal(call, pass.k), invalid("pass SequenceLayout::Parts of this rank"));
    call = pass.call;
    call.kv_heads = 3;
    EXPECT_THAT(refusal(call, pass.k), invalid("the KV heads must divide the query heads"));
    call = pass.call;
    call.mask.keys_before = 0;
    EXPECT_THAT(refusal(call, pass.k), invalid("attention: "));
    call = pass.call;
    call.scale = 0.0F;
    EXPECT_THAT(refusal(call, pass.k), invalid("it must be positive"));
    EXPECT_THAT(AttentionParallel::Create({.ulysses_degree = 3}, *runner.fixture().engine,
                                          *runner.fixture().pool, ProcessGroup{"context", {0, 1, 2, 3}, rank})
                    .status(),
                invalid("does not divide the 4 ranks"));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
