// Whole runs with sequences split over ranks, which are threads: their losses equal those of one rank, and no
// schedule changes a bit.
#include <set>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>

#include "tests/train/train_run.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Mesh kTwo = {1, 1, 2};
constexpr Mesh kFour = {1, 1, 4};

struct Scheme {
  CpScheme scheme;
  std::optional<RingRotation> rotate = std::nullopt;
  std::optional<LoadBalance> balance = std::nullopt;
};

std::string Describe(const Mesh& mesh, const Scheme& scheme) {
  return absl::StrCat(mesh.replicate, "x", mesh.shard, "x", mesh.context, " ", ToAbsl(Name(scheme.scheme)),
                      " ", scheme.rotate ? ToAbsl(Name(*scheme.rotate)) : "", " ",
                      scheme.balance ? ToAbsl(Name(*scheme.balance)) : "");
}

// All schemes for `ranks` ranks, with and without load balance.
std::vector<Scheme> SchemesOf(int ranks) {
  std::vector<Scheme> schemes = {{CpScheme::kUlysses}, {CpScheme::kGather, {}, LoadBalance::kQueryExchange}};
  for (const LoadBalance balance : {LoadBalance::kNone, LoadBalance::kHeadTail}) {
    schemes.push_back({CpScheme::kGather, {}, balance});
    if (ranks == 4) schemes.push_back({CpScheme::kHybrid, {}, balance});
    for (const RingRotation rotate : {RingRotation::kAllGather, RingRotation::kShift}) {
      schemes.push_back({CpScheme::kRing, rotate, balance});
      if (ranks == 4) schemes.push_back({CpScheme::kHybrid, rotate, balance});
    }
  }
  return schemes;
}

class ContextRun : public TrainRun {
 protected:
  ContextRun() {
    config_.model.heads = 4;
    config_.model.kv_heads = 2;
    config_.data.seq_len = 19;
  }

  Result RunScheme(const Mesh& mesh, const Scheme& scheme) {
    config_.parallel.context.scheme = scheme.scheme;
    config_.parallel.context.ring_rotate = scheme.rotate;
    config_.parallel.context.load_balance = scheme.balance;
    return Run(mesh);
  }

  void ExpectLossesOfOneRankWithSchemes(const Mesh& mesh, const std::vector<Scheme>& schemes) {
    const Result one = Run({1, 1});
    for (const Scheme& scheme : schemes) {
      SCOPED_TRACE(Describe(mesh, scheme));
      ExpectSameLosses(RunScheme(mesh, scheme), one);
    }
  }
};

TEST_F(ContextRun, FollowsTheLossesOfOneRankWithEveryScheme) {
  config_.optimizer.steps = 20;
  for (const Mesh& mesh : {kTwo, kFour}) ExpectLossesOfOneRankWithSchemes(mesh, SchemesOf(mesh.context));
}

TEST_F(ContextRun, FollowsTheLossesOfOneRankTogetherWithOtherAxes) {
  config_.optimizer.steps = 20;
  for (const Mesh& mesh : {Mesh{1, 2, 2}, Mesh{2, 1, 2}}) {
    ExpectLossesOfOneRankWithSchemes(mesh, {{CpScheme::kAuto},
                                            {CpScheme::kUlysses},
                                            {CpScheme::kGather},
                                            {CpScheme::kRing, RingRotation::kShift, LoadBalance::kNone}});
  }
}

TEST_F(ContextRun, FollowsTheLossesOfOneRankWithMicrobatchesAndBothFlatLayouts) {
  config_.optimizer.steps = 20;
  config_.data.batch_size = 8;
  config_.data.grad_accum = 2;
  const Result one = Run({1, 1});
  for (const bool zero_copy : {true, false}) {
    config_.parallel.zero_copy = zero_copy;
    config_.parallel.activation_checkpoint =
        zero_copy ? ActivationCheckpoint::kNone : ActivationCheckpoint::kFull;
    for (const CpScheme scheme : {CpScheme::kUlysses, CpScheme::kGather, CpScheme::kRing}) {
      SCOPED_TRACE(absl::StrCat(ToAbsl(Name(scheme)), ", zero copy ", zero_copy));
      ExpectSameLosses(RunScheme({1, 2, 2}, {scheme}), one);
    }
  }
}

TEST_F(ContextRun, FollowsTheLossesOfOneRankWithPackedDocuments) {
  config_.optimizer.steps = 20;
  config_.data.document_separator = 'e';
  ExpectLossesOfOneRankWithSchemes(kFour, SchemesOf(4));
  ExpectLossesOfOneRankWithSchemes({2, 1, 2}, {{CpScheme::kAuto}, {CpScheme::kRing}});
}

TEST_F(ContextRun, TreatsDocumentsLikeSequencesOfTheirLength) {
  std::string text;
  for (int i = 0; i < 1600; ++i) text += i % 8 == 7 ? '.' : static_cast<char>('a' + (i * i / 7 + i / 3) % 26);
  config_.data.paths = {folder_.Write("documents.txt", text)};
  config_.data.shuffle = false;
  config_.data.seq_len = 8;
  config_.data.batch_size = 8;
  const Result sequences = Run({1, 1});
  config_.data.seq_len = 16;
  config_.data.batch_size = 4;
  const Result whole = Run({1, 1});
  config_.data.document_separator = '.';
  ExpectSameLosses(Run({1, 1}), sequences);
  EXPECT_GT(std::abs(whole.steps.back().loss - sequences.steps.back().loss), 1e-3)
      << "documents make no difference";
}

TEST_F(ContextRun, WorksIfRanksHaveNoTokensOrNoHeads) {
  config_.data.seq_len = 3;
  config_.model.heads = 2;
  config_.model.kv_heads = 1;
  ExpectLossesOfOneRankWithSchemes(kFour, SchemesOf(4));
}

TEST_F(ContextRun, GivesTheSameBitsForEverySchedule) {
  config_.data.grad_accum = 2;
  for (const CpScheme scheme : {CpScheme::kUlysses, CpScheme::kGather, CpScheme::kRing, CpScheme::kHybrid}) {
    std::set<uint64_t> hashes;
    const auto run = [&] { hashes.insert(RunScheme(kFour, {scheme}).report.weights_hash); };
    for (const bool zero_copy : {true, false}) {
      for (const int prefetch : {0, 2}) {
        config_.parallel.zero_copy = zero_copy;
        config_.parallel.prefetch_depth = prefetch;
        run();
      }
    }
    engine_.piece_bytes = 4096;
    run();
    engine_ = {};
    EXPECT_EQ(hashes.size(), 1) << Name(scheme);
  }
}

TEST_F(ContextRun, GivesTheSameBitsBetweenNodesForEverySliceAndWindow) {
  for (const CpScheme scheme : {CpScheme::kUlysses, CpScheme::kGather, CpScheme::kRing}) {
    config_.parallel.context.scheme = scheme;
    std::set<uint64_t> hashes = {Run(kFour).report.weights_hash};
    for (const int64_t slice : {1024, 65536}) {
      for (const int64_t window : {slice, 4 * slice}) {
        engine_.slice_bytes = slice;
        engine_.lane_window_bytes = window;
        engine_.yield_window_bytes = slice;
        hashes.insert(Run(kFour, NodeMap::RanksPerNode(4, 2)).report.weights_hash);
      }
    }
    engine_ = {};
    EXPECT_EQ(hashes.size(), 1) << Name(scheme);
  }
}

TEST_F(ContextRun, EvaluatesTheSameBitsOnMeshesThatSplitSequencesAlike) {
  config_.eval.paths = {folder_.Write("eval.txt", SomeText().substr(1234, 2400))};  // Three passes.
  config_.optimizer.lr = 0;
  for (const std::optional<int64_t> separator : {std::optional<int64_t>(), std::optional<int64_t>('e')}) {
    config_.data.document_separator = separator;
    const double one = Run({1, 1}).report.eval_loss.value();
    const double two = Run({1, 1, 2}).report.eval_loss.value();
    EXPECT_NEAR(two, one, 1e-6);
    EXPECT_EQ(Run({1, 2, 2}).report.eval_loss, two);
    EXPECT_EQ(Run({2, 1, 2}).report.eval_loss, two);
  }
}

TEST_F(ContextRun, RefusesRanksAndSeparatorsThatDoNotFit) {
  config_.parallel.context.size = 3;
  EXPECT_THAT(std::string(RunError(2).message()), AllOf(HasSubstr("--cp 3 do not multiply to the 2 ranks"),
                                                        HasSubstr("mpirun's -n, or --ranks of weft plan")));
  config_.parallel.context.size = 2;
  config_.data.document_separator = 256;
  EXPECT_THAT(std::string(RunError(2).message()),
              HasSubstr("--document-separator 256: the vocabulary ends at 255"));
}

}  // namespace
}  // namespace weft
