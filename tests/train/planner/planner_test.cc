// Costs of a machine, meshes and their ranking, the report, speeds.
#include "weft/train/planner.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/train/files/json.h"
#include "src/train/planner/costs.h"
#include "src/train/planner/costs_file.h"
#include "src/train/planner/measure.h"
#include "src/train/planner/plan_json.h"
#include "src/train/planner/plan_report.h"
#include "src/train/planner/replay.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/status_matchers.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::weft::testing::ScopedVariable;
using ::weft::testing::StatusIs;

MeasuredModel Measured(int64_t tokens, double forward_ns) {
  MeasuredModel model;
  model.shape = {.dim = 64,
                 .heads = 4,
                 .kv_heads = 4,
                 .head_dim = 16,
                 .ffn_dim = 128,
                 .vocab_size = 256,
                 .selected_keys = 0,
                 .window = 0,
                 .adapter_elements = 0,
                 .qk_norm = false,
                 .sequences = 1,
                 .seq_len = tokens,
                 .dtype = DType::kF32,
                 .threads = 1};
  model.times.fill({forward_ns, 2 * forward_ns});
  return model;
}

TEST(MachineCosts, OfTheSameShapeAreUsedAsTheyWereMeasured) {
  MachineCosts costs;
  costs.Add(Measured(128, 5));
  costs.Add(Measured(256, 7));
  costs.Add(Measured(256, 8));  // Replaces the one before.
  const TimesChoice choice = ChooseTimes(costs, costs.models.back().shape);
  EXPECT_TRUE(choice.exact);
  EXPECT_EQ(choice.times[0].forward_ns, 8);
  EXPECT_EQ(costs.models.size(), 2U);
}

// Shapes that differ from `shape` in one field each.
std::vector<PartShape> ShapesBeside(const PartShape& shape) {
  std::vector<PartShape> shapes(9, shape);
  shapes[0].heads = 2;
  shapes[1].kv_heads = 1;
  shapes[2].head_dim = 8;
  shapes[3].selected_keys = 32;
  shapes[4].window = 32;
  shapes[5].adapter_elements = 1024;
  shapes[6].qk_norm = true;
  shapes[7].ffn_dim = 192;
  shapes[8].vocab_size = 300;
  return shapes;
}

// Those of Measured(128, 5) and, added later, of a model of another shape.
MachineCosts CostsWithANewerModel(const PartShape& shape) {
  MachineCosts costs;
  costs.Add(Measured(128, 5));
  MeasuredModel newest = Measured(128, 7);
  newest.shape = shape;
  costs.Add(newest);
  return costs;
}

TEST(MachineCosts, OfTheSameShapeAreUsedIfThoseOfASimilarOneAreOlder) {
  for (const PartShape& shape : ShapesBeside(Measured(128, 5).shape)) {
    const MachineCosts costs = CostsWithANewerModel(shape);
    for (const MeasuredModel& model : costs.models) {
      const TimesChoice choice = ChooseTimes(costs, model.shape);
      EXPECT_TRUE(choice.exact);
      EXPECT_EQ(choice.times, model.times);
    }
  }
}

// The wanted shape has twice the tokens of a measured one.
TEST(MachineCosts, AreScaledFromTheSameKindOfBlock) {
  for (const PartShape& shape : ShapesBeside(Measured(128, 5).shape)) {
    const MachineCosts costs = CostsWithANewerModel(shape);
    for (const MeasuredModel& model : costs.models) {
      PartShape wanted = model.shape;
      wanted.sequences = 2;
      EXPECT_EQ(ChooseTimes(costs, wanted).measured, &model);
    }
  }
}

TEST(MachineCosts, OfAnotherShapeAreScaledByOperationsOfTheNearest) {
  MachineCosts costs;
  costs.Add(Measured(128, 5));
  costs.Add(Measured(1024, 60));
  PartShape shape = costs.models[1].shape;
  shape.sequences = 2;
  const TimesChoice choice = ChooseTimes(costs, shape);
  EXPECT_FALSE(choice.exact);
  EXPECT_DOUBLE_EQ(choice.times[static_cast<size_t>(ModelPart::kHead)].backward_ns, 240);
  shape.dtype = DType::kBF16;
  EXPECT_EQ(ChooseTimes(costs, shape).measured, nullptr);
}

TEST(MachineCosts, SurviveTheirFile) {
  MachineCosts costs;
  costs.rates.copy_gb_s = 7.25;
  costs.Add(Measured(128, 5));
  const auto read = ParseCosts(FormatCosts(costs), "costs.json");
  ASSERT_OK(read);
  EXPECT_EQ(read->rates.copy_gb_s, 7.25);
  ASSERT_EQ(read->models.size(), 1U);
  EXPECT_EQ(read->models[0].shape, costs.models[0].shape);
  EXPECT_EQ(read->models[0].times, costs.models[0].times);
}

TEST(MachineCosts, OfADamagedFileAreAnErrorThatNamesIt) {
  const std::string text = FormatCosts({});
  EXPECT_THAT(ParseCosts(text.substr(0, text.size() / 2), "c.json").status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("c.json")));
  EXPECT_THAT(ParseCosts("{}", "c.json").status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("--measure")));
}

TEST(MachineCosts, OfAFileHaveTimesAndRatesThatCanBe) {
  MachineCosts costs;
  costs.Add(Measured(128, 5));
  const std::string text = FormatCosts(costs);
  EXPECT_OK(ParseCosts(text, "c.json"));
  const std::string time = "\"forward_ns\": 5.0", rate = "\"adamw_ns\": 2.0";
  for (const auto& [good, name] : {std::pair(time, "\"forward_ns\""), std::pair(rate, "\"adamw_ns\"")}) {
    for (const char* bad : {"-5e9", "1e300"}) {
      const std::string changed = absl::StrReplaceAll(text, {{good, absl::StrCat(name, ": ", bad)}});
      ASSERT_NE(changed, text);
      EXPECT_THAT(ParseCosts(changed, "c.json").status(),
                  StatusIs(absl::StatusCode::kDataLoss, HasSubstr("it must be a number from")));
    }
  }
}

TEST(MachineCosts, OfAFileHaveSizesAndDTypesThatCanBe) {
  MachineCosts costs;
  costs.Add(Measured(1024, 5));
  const Json good = ParseJson(FormatCosts(costs));
  const struct {
    const char* key;
    const char* named;
    std::vector<Json> values;
  } cases[] = {
      {"dim", "dim", {16.7, 0, int64_t{1} << 62, "128", nullptr}},
      {"heads", "heads", {-1, std::numeric_limits<int64_t>::max()}},
      {"sequences", "sequences", {int64_t{1} << 32}},
      {"seq_len", "seq_len", {0, std::numeric_limits<uint64_t>::max()}},
      {"sequences", "with seq_len", {int64_t{1} << 31}},
      {"threads", "threads", {0, int64_t{1} << 32}},
      {"qk_norm", "qk_norm", {1, nullptr}},
      {"dtype", "dtype", {"foo", 32}},
      {"block", "block", {nullptr, 5}},
      {"block", "backward_ns", {{{"forward_ns", 1}}}},
  };
  for (const auto& [key, named, values] : cases) {
    for (const Json& value : values) {
      Json bad = good;
      bad["models"][0][key] = value;
      EXPECT_THAT(ParseCosts(JsonText(bad), "c.json").status(),
                  StatusIs(absl::StatusCode::kDataLoss, HasSubstr(named)))
          << key << " " << JsonText(value);
    }
  }
  for (const char* key : {"models", "rates"}) {
    for (const Json& value : {Json(), Json(5)}) {
      Json bad = good;
      bad[key] = value;
      const absl::Status status = ParseCosts(JsonText(bad), "c.json").status();
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss,
                                   AllOf(HasSubstr(key), HasSubstr("remove this file of costs"))));
    }
  }
}

TEST(Plan, HasItsCostsInAFolderThatTheUserNames) {
  const ScopedVariable no_cache("XDG_CACHE_HOME", "");
  for (const auto& [home, path] :
       {std::pair("/home/a", "/home/a/.cache/weft/costs.json"), std::pair("", "./.cache/weft/costs.json")}) {
    const ScopedVariable variable("HOME", home);
    EXPECT_EQ(CostsPath({}), path);
  }
}

TEST(Plan, RefusesTimesThatCannotBeSimulated) {
  PlanOptions options;
  options.flops = "1e-9gf";
  EXPECT_THAT(PlanTraining({}, options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("s can be simulated")));
}

TEST(Plan, RefusesMemoryThatNoHostHas) {
  for (const double memory : {0.0, -1.0, 1e300, std::numeric_limits<double>::infinity()}) {
    PlanOptions options;
    options.memory_gib = memory;
    EXPECT_THAT(PlanTraining({}, options).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--memory")));
  }
}

TEST(Plan, MeasuresNoMoreThreadsThanThisMachineHas) {
  PlanOptions options;
  options.cores = 4096;
  options.measure = true;
  options.costs_file = "/nonexistent/costs.json";  // Would be written after the measurement.
  EXPECT_THAT(
      PlanTraining({}, options).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--measure with 4096 threads a rank: ")));
}

TEST(MachineCosts, HaveMeasuredRatesOfProducts) {
  const CoreRates measured = MeasureRates(1);
  EXPECT_GT(measured.flops_f32, 0);
  EXPECT_GT(measured.flops_bf16, 0);
  EXPECT_NE(measured.flops_f32, CoreRates().flops_f32);
  EXPECT_NE(measured.flops_bf16, CoreRates().flops_bf16);
}

TEST(Meshes, AreAllProductsOfTheRanks) {
  std::vector<std::string> names;
  for (const MeshSize& mesh : AllMeshes(12, 2)) {
    EXPECT_EQ(mesh.ranks(), 12);
    names.push_back(mesh.Name());
  }
  EXPECT_THAT(names, ElementsAre("1 x 6 x 2", "2 x 3 x 2", "3 x 2 x 2", "6 x 1 x 2"));
}

Candidate Made(int64_t replicate, double step_ms, int64_t bytes, const std::string& error = "") {
  Candidate candidate{.mesh = {replicate, 4 / replicate, 1},
                      .error = error,
                      .step = ReplayResult(),
                      .memory = {},
                      .tokens = 1024};
  candidate.step->step_ms = step_ms;
  candidate.memory.images = bytes;
  return candidate;
}

TEST(Candidates, AreRankedByFitThenSpeedThenMemory) {
  std::vector<Candidate> candidates = {Made(1, 10, 9), Made(2, 5, 9, "does not fit"), Made(4, 10, 3)};
  candidates.push_back(
      {.mesh = {3, 1, 1}, .error = "impossible", .step = std::nullopt, .memory = {}, .tokens = 0});
  candidates.push_back(Made(2, 8, 99));
  Rank(candidates);
  std::vector<int64_t> replicates;
  for (const Candidate& candidate : candidates) replicates.push_back(candidate.mesh.replicate);
  EXPECT_THAT(replicates, ElementsAre(2, 4, 1, 2, 3));
}

TEST(PlanReport, HasOneLineForEachMeshWithin80Columns) {
  PlanReport report{.model = "8 layers",
                    .batch = "4 sequences",
                    .machine = "1 host",
                    .costs = "given",
                    .assumptions = {std::string(30, 'a') + " " + std::string(45, 'b')},
                    .candidates = {},
                    .command = "mpirun -n 4 weft train --dp-replicate 1 --dp-shard 4"};
  report.candidates = {Made(1, 10, int64_t{300} << 20), Made(2, 250, int64_t{3} << 30, "does not fit")};
  EXPECT_EQ(FormatText(report),
            "model       8 layers\n"
            "batch       4 sequences\n"
            "machine     1 host\n"
            "costs       given\n"
            "\n"
            "mesh                         step  tokens/s    exposed      memory  host sends\n"
            "1 x 4         FSDP        10.0 ms    102.4k     0.0 ms     300 MiB         0 B\n"
            "2 x 2         no fit       250 ms      4096     0.0 ms     3.0 GiB         0 B\n"
            "2 x 2       does not fit\n"
            "\n"
            "1 x 4 in detail, of one rank:\n"
            "memory      300 MiB: 0 B weights, 0 B gradients, 0 B moments, 300 MiB gathered\n"
            "            weights, 0 B full gradients, 0 B activations, 0 B scratch, 0 B\n"
            "            program, 0 B idle; resident with pages of peers 300 MiB; at most 0 B\n"
            "time        10.0 ms a step: 0.0 ms of computation on free cores, 0.0 ms of\n"
            "            exposed communication\n"
            "receives    0 B all-gather, 0 B reduce-scatter, 0 B all-reduce, 0 B attention\n"
            "\n"
            "assumes     aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n"
            "            bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\n"
            "\n"
            "run:\n"
            "  mpirun -n 4 weft train --dp-replicate 1 --dp-shard 4\n");
}

TEST(LinkSpeed, IsParsedWithItsUnits) {
  const auto link = LinkSpeed::Parse("100gbit:5us");
  ASSERT_OK(link);
  EXPECT_EQ(link->gigabits, 100);
  EXPECT_EQ(link->latency_us, 5);
  EXPECT_EQ(LinkSpeed::Parse("500mbit:1ms").value().latency_us, 1000);
  EXPECT_EQ(ParseFlops("2tf").value(), 2e12);
  for (const char* bad : {"", "10", "-1gbit", "10gbit:5", "nangbit", "10gbit:5us:1us", "1e-20gbit:1us",
                          "0.9mbit", "1e7gbit", "1gbit:1e300us", "1gbit:1001ms"}) {
    EXPECT_THAT(LinkSpeed::Parse(bad).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--link")));
  }
  EXPECT_THAT(ParseFlops("80").status(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--flops")));
}

}  // namespace
}  // namespace weft
