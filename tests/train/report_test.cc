#include "weft/train/report.h"

#include <cmath>
#include <string>

#include <absl/strings/str_replace.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/train/report/bar_chart.h"
#include "src/train/report/svg_chart.h"
#include "src/train/report/trace_summary.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_folder.h"
#include "tests/train/train_run.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::StatusIs;

std::string Track(int thread, const std::string& name) {
  return absl::StrCat(R"({"ph":"M","name":"thread_name","pid":0,"tid":)", thread, R"(,"args":{"name":")",
                      name, "\"}},\n");
}

// A span of a track, in microseconds.
std::string SpanText(int thread, const std::string& category, const std::string& name, int begin,
                     int length) {
  return absl::StrCat(R"({"ph":"X","name":")", name, R"(","cat":")", category, R"(","pid":0,"tid":)", thread,
                      ",\"ts\":", begin, ",\"dur\":", length, "},\n");
}

// One rank and two steps, of which the second has nothing but its time. Module "a" is a group, "norm" is not.
std::string TraceText() {
  return absl::StrCat(
      "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n", Track(0, "compute"), Track(1, "shard/all_gather"),
      Track(2, "shard/all_gather (2)"), Track(3, "shard/reduce_scatter"), Track(4, "world/control"),
      SpanText(0, "step", "step 3", 0, 20000), SpanText(0, "step", "step 4", 30000, 10000),
      SpanText(0, "forward", "", 1000, 8000), SpanText(0, "forward", "a", 2000, 4000),
      SpanText(0, "forward", "a", 2600, 1000),  // A module below the group that has its name.
      SpanText(0, "forward", "a.7", 4000, 1000),
      SpanText(0, "wait", "wait for all_gather 'a' on shard/all_gather", 2000, 500),
      SpanText(0, "product", "8 x 8 x 8 bf16", 4100, 600), SpanText(0, "optimizer", "update", 18100, 400),
      SpanText(0, "forward", "norm", 7000, 1000), SpanText(0, "backward", "", 10000, 8000),
      SpanText(0, "backward", "a", 11000, 6000), SpanText(0, "forward", "a", 11000, 2000),  // Recomputed.
      SpanText(0, "wait", "wait for all_reduce 'norm' on world/control", 19000, 600),
      SpanText(1, "operation", "all_gather a", 100, 3000),
      SpanText(2, "operation", "all_gather root", 200, 1000),
      SpanText(3, "operation", "reduce_scatter a", 17000, 2000),
      SpanText(4, "operation", "all_reduce norm", 19000, 800), "{}\n]}\n");
}

TEST(TraceSummary, DividesTimesAmongTheGroups) {
  const TempFolder folder;
  ASSERT_OK_AND_ASSIGN(const TraceSummary summary, ReadTraceSummary(folder.Write("t.json", TraceText())));
  EXPECT_EQ(summary.ranks, 1);
  EXPECT_EQ(summary.first_step, 3);
  EXPECT_EQ(summary.last_step, 4);
  EXPECT_DOUBLE_EQ(summary.step_ms, 15);
  EXPECT_DOUBLE_EQ(summary.exposed_ms, 0.55);
  // Half of the sums, as there are two steps.
  EXPECT_EQ(ToText(summary),
            "1 rank, steps 3 to 4: 15.00 ms a step, 0.55 ms of it exposed\n"
            "mean ms of a step of a rank:\n"
            "group                       gather   reduce  forward backward  exposed\n"
            "a                             1.50     1.00     1.75     3.00     0.25\n"
            "root                          0.50     0.00     2.00     1.00     0.00\n"
            "(world/control)               0.00     0.40     0.00     0.00     0.30\n"
            "all                           2.00     1.40     3.75     4.00     0.55\n"
            "\n"
            "the same by module, without modules inside and without waits:\n"
            "module                                   forward backward   update products\n"
            "a                                           1.25     3.00     0.00     0.00\n"
            "a.*                                         0.50     0.00     0.00     0.30\n"
            "norm                                        0.50     0.00     0.00     0.00\n"
            "root                                        1.50     1.00     0.00     0.00\n"
            "(update)                                    0.00     0.00     0.20     0.00\n"
            "all                                         3.75     4.00     0.20     0.30\n");
}

TEST(TraceSummary, CountsOperationsWithoutALabelForTheRoot) {
  const TempFolder folder;
  const std::string text = absl::StrCat(
      "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n", Track(0, "compute"), Track(1, "shard/all_gather"),
      SpanText(0, "step", "step 3", 0, 20000), SpanText(1, "operation", "all_gather", 100, 3000), "{}\n]}\n");
  ASSERT_OK_AND_ASSIGN(const TraceSummary summary, ReadTraceSummary(folder.Write("t.json", text)));
  ASSERT_EQ(summary.groups.size(), 1);
  EXPECT_EQ(summary.groups[0].group, "root");
  EXPECT_DOUBLE_EQ(summary.groups[0].gather_ms, 3);
}

TEST(TraceSummary, HasRowsInParenthesesForBarriersOfAllGroups) {
  const TempFolder folder;
  const auto wait = [](const char* operation, int begin) {
    return SpanText(0, "wait", absl::StrCat("wait for ", operation, " on shard/all_gather"), begin, 1000);
  };
  const std::string text = absl::StrCat(
      "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n", Track(0, "compute"), Track(1, "shard/all_gather"),
      SpanText(0, "step", "step 3", 0, 20000), wait("barrier 'shards written of root'", 0),
      wait("all_gather 'a'", 2000), wait("barrier 'a'", 4000),
      SpanText(1, "operation", "barrier shards written of root", 0, 1000), "{}\n]}\n");
  ASSERT_OK_AND_ASSIGN(const TraceSummary summary, ReadTraceSummary(folder.Write("t.json", text)));
  ASSERT_EQ(summary.groups.size(), 2);
  EXPECT_EQ(summary.groups[0].group, "a");
  EXPECT_DOUBLE_EQ(summary.groups[0].exposed_ms, 2);
  EXPECT_EQ(summary.groups[1].group, "(shards written of root)");
  EXPECT_DOUBLE_EQ(summary.groups[1].exposed_ms, 1);
}

TEST(TraceSummary, RefusesATruncatedTrace) {
  const TempFolder folder;
  const std::string text = TraceText();
  for (size_t bytes = 1; bytes + 1 < text.size(); ++bytes) {
    EXPECT_THAT(ReadTraceSummary(folder.Write("t.json", text.substr(0, bytes))),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("t.json")))
        << bytes;
  }
  const std::string damaged = absl::StrReplaceAll(text, {{"\"}}", "\"}"}});
  ASSERT_NE(damaged, text);
  EXPECT_THAT(ReadTraceSummary(folder.Write("t.json", damaged)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("line 2")));
}

TEST(TraceSummary, NamesTheLineThatIsNotOfATrace) {
  const TempFolder folder;
  EXPECT_THAT(ReadTraceSummary(folder.Write("a.json", "{\"x\": 1}\nword\n")),
              StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr("a.json"), HasSubstr("line 2"))));
  EXPECT_THAT(ReadTraceSummary(folder.Write("b.json", "")),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("--trace")));
}

class ReportPage : public ::testing::Test {
 protected:
  ReportPage() {
    options_.runs = {folder_.Write("a&<b>.jsonl", Lines(2.5))};
    options_.output = folder_ / "report.html";
  }

  static std::string Lines(double loss) {
    return absl::StrCat("{\"step\":1,\"loss\":", loss,
                        ",\"bytes\":{\"all_gather\":1048576},\"eval_loss\":7}\n",
                        "{\"step\":2,\"loss\":null}\n", "{\"step\":3,\"loss\":", loss / 2, "}\n");
  }

  std::string Page() {
    EXPECT_OK(WriteReport(options_));
    return ReadFile(options_.output);
  }

  TempFolder folder_;
  ReportOptions options_;
};

TEST_F(ReportPage, HasCurvesAndValuesAndLoadsNothing) {
  const std::string page = Page();
  EXPECT_THAT(page, AllOf(HasSubstr("training: 2.5 at step 1, 1.25 at step 3, between 1.25 and 2.5"),
                          HasSubstr("evaluation: 7 at step 1"), HasSubstr("a&amp;&lt;b&gt;.jsonl")));
  EXPECT_THAT(page, AllOf(Not(HasSubstr("<b>")), Not(HasSubstr("http")), Not(HasSubstr("<script")),
                          Not(HasSubstr("{{"))));
}

TEST_F(ReportPage, HasACurveOfTheLossScaleOfARunInF16Only) {
  EXPECT_THAT(Page(), Not(HasSubstr("Loss scale")));
  options_.runs = {folder_.Write("f16.jsonl",
                                 "{\"step\":1,\"loss\":2,\"loss_scale\":512}\n"
                                 "{\"step\":2,\"loss\":2,\"loss_scale\":256}\n")};
  options_.output = folder_ / "f16.html";
  EXPECT_THAT(Page(), AllOf(HasSubstr("Loss scale"), HasSubstr("512 at step 1, 256 at step 2")));
}

TEST_F(ReportPage, MarksTheChoicesInWhichRunsDiffer) {
  options_.runs.push_back(folder_.Write("other.jsonl", Lines(5)));
  folder_.Write("a&<b>.config.json", R"({"mesh": {"value": "shard 2"}, "seed": {"value": "0"}})");
  folder_.Write("other.config.json", R"({"mesh": {"value": "shard 4"}, "seed": {"value": "0"}})");
  const std::string page = Page();
  EXPECT_THAT(page, AllOf(HasSubstr("mesh *</th><td>shard 2</td><td>shard 4</td>"),
                          HasSubstr("seed</th><td>0</td><td>0</td>")));
}

TEST_F(ReportPage, HasTheTimesOfATrace) {
  options_.trace = folder_.Write("t.json", TraceText());
  const std::string page = Page();
  EXPECT_THAT(page, HasSubstr("<th scope=\"row\">a</th><td>1.50</td><td>1.00</td><td>1.75</td>"));
  EXPECT_THAT(page, HasSubstr("a: forward 1.75, backward 3, exposed 0.25, gather 1.5, reduce 1; root: "));
}

// A group of 1,024 f32 parameters on two shard ranks, each of which gathers 2,048 bytes and reduces as many.
constexpr const char* kByteInputs =
    R"({"shard_size":2,"replicate_size":1,"microbatches":1,"gradient_sync":"each","ranks_per_node":0,)"
    R"("has_even_nodes":true,"spans_nodes":false,"residency":"private","layout":"contiguous","alignment":16,)"
    R"("param_dtype":"f32","reduce_dtype":"f32","reshard_after_forward":true,)"
    R"("reshard_root_after_forward":false,"prefetch_depth":1,"shard_optimizer_over_replicas":false,)"
    R"("groups":[{"count":1,"parameters":[{"shape":[32,32],"trainable":true}]}]})";

std::string BytesLine(int step, int gathered, const std::string& more = "") {
  return absl::StrCat("{\"step\":", step, ",\"bytes\":{\"all_gather\":", gathered,
                      ",\"reduce_scatter\":2048}", more, "}\n");
}

TEST_F(ReportPage, MarksBytesThatAreNotThoseOfTheFormulas) {
  const std::string inputs = absl::StrCat(",\"byte_inputs\":", kByteInputs);
  const std::string lines = BytesLine(1, 2048, inputs) + BytesLine(2, 2048) + BytesLine(3, 2049);
  options_.runs = {folder_.Write("run.jsonl", lines)};
  const std::string page = Page();
  EXPECT_THAT(page, HasSubstr("<tr class=\"differs\"><th scope=\"row\">all-gathered: weights *</th>"
                              "<td>0.001953</td><td>0.001953</td><td>differs in 1 of 3 steps, "
                              "first in step 3: 2049 bytes, not 2048</td>"));
  EXPECT_THAT(page, HasSubstr("<tr><th scope=\"row\">reduce-scattered: gradients</th>"
                              "<td>0.001953</td><td>0.001953</td><td>equal in all steps</td>"));
}

TEST_F(ReportPage, SaysThatMetricsHaveNoInputsOfTheFormulas) {
  EXPECT_THAT(Page(), HasSubstr("the inputs of the formulas are missing"));
}

TEST_F(ReportPage, RefusesDamagedInputsOfTheFormulas) {
  const std::pair<const char*, const char*> damages[] = {
      {"\"shard_size\":2", "\"shard_size\":0"},
      {"\"residency\":\"private\"", "\"residency\":\"lost\""},
      {"[32,32]", "[32,-1]"},
      {"[32,32]", "[4194304,4194304,4194304]"},
      {"\"count\":1", "\"count\":1e9"},
      {"\"alignment\":16,", ""},
  };
  for (const auto& [from, to] : damages) {
    const std::string inputs = absl::StrReplaceAll(kByteInputs, {{from, to}});
    ASSERT_NE(inputs, kByteInputs);
    options_.runs = {folder_.Write("bad.jsonl", BytesLine(1, 0, absl::StrCat(",\"byte_inputs\":", inputs)))};
    EXPECT_THAT(WriteReport(options_),
                StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr("byte_inputs"), HasSubstr("line 1"))))
        << to;
  }
}

// Runs write what a report needs: no byte of their steps differs from the formulas.
using ReportOfARun = TrainRun;

TEST_F(ReportOfARun, HoldsTheBytesOfEveryStepAgainstTheFormulas) {
  ReportOptions options;
  const auto record = [&](const Mesh& mesh, int ranks_per_node) {
    const std::string name = absl::StrCat(options.runs.size(), ".jsonl");
    config_.output.metrics_file = folder_ / name;
    Run(mesh, NodeMap::RanksPerNode(mesh.ranks(), ranks_per_node));
    options.runs.push_back(folder_ / name);
  };
  UseOddSizes();
  record({1, 4}, 2);
  config_.parallel.zero_copy = false;
  config_.parallel.param_dtype = config_.parallel.reduce_dtype = DType::kBF16;
  config_.eval.paths = config_.data.paths;  // An evaluation after each step gathers between steps.
  config_.eval.interval = 1;
  config_.eval.sequences = 4;
  record({1, 2}, 1);
  config_.parallel.zero_copy = true;
  config_.parallel.shard_optimizer_over_replicas = true;
  config_.parallel.check_replicas = 1;
  record({2, 2}, 1);
  config_.lora = {.rank = 2, .targets = "all-linear"};
  record({2, 2}, 4);
  options.output = folder_ / "report.html";
  ASSERT_OK(WriteReport(options));
  const std::string page = ReadFile(options.output);
  EXPECT_THAT(page, Not(HasSubstr("differs in")));
  EXPECT_THAT(page, Not(HasSubstr("are missing")));
  EXPECT_THAT(page, HasSubstr("<th scope=\"row\">sent to other nodes, before compression</th>"));
  size_t equal = 0;
  for (size_t at = 0; (at = page.find("equal in all steps", at)) != std::string::npos; ++at) ++equal;
  EXPECT_EQ(equal, 3 * options.runs.size());
}

TEST_F(ReportPage, NamesTheFlagAndThePageThatCannotBeWritten) {
  options_.output = folder_ / "none/report.html";
  EXPECT_THAT(WriteReport(options_),
              StatusIs(absl::StatusCode::kNotFound,
                       "-o: cannot write '" + options_.output + "': No such file or directory"));
}

TEST_F(ReportPage, RefusesDamagedMetricsAndItsOwnInputs) {
  const std::string good = options_.runs[0];
  options_.runs = {folder_.Write("bad.jsonl", Lines(1) + "{\"step\":3}\n")};
  EXPECT_THAT(WriteReport(options_),
              StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr("bad.jsonl"), HasSubstr("line 4"))));
  options_.runs = {good};
  for (const std::string& input : {good, folder_.Write("a&<b>.config.json", "{}")}) {
    options_.output = input;
    EXPECT_THAT(WriteReport(options_),
                StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr(input), HasSubstr("-o"))));
  }
}

TEST(BarChart, PutsPartsOneAfterTheOther) {
  // The longest bar is four units long and fills the width of 310.
  const BarChart chart{
      .title = "Times",
      .unit = "ms",
      .kinds = {"x", "y"},
      .rows = {{"a", {{{0, 1}, {1, 3}}, {{1, 2}}}}, {"layers.of.a.long.name.7", {{{0, 0}}}}}};
  const std::string figure = FigureOf(chart);
  EXPECT_THAT(figure, AllOf(HasSubstr(R"(run0" x="150.00" y="4.0" width="77.50")"),
                            HasSubstr(R"(run1" x="227.50" y="4.0" width="232.50")"),
                            HasSubstr(R"(run1" x="150.00" y="12.0" width="155.00")"),
                            HasSubstr(">..s.of.a.long.name.7<"), Not(HasSubstr("width=\"0.00\""))));
  EXPECT_EQ(FigureOf(BarChart{.title = "", .unit = "", .kinds = {"x"}, .rows = {{"a", {{{0, 0}}}}}}), "");
}

TEST(AxisMarks, AreRoundNumbers) {
  EXPECT_THAT(AxisMarks(0.3, 5.6, false), ElementsAre(2, 4));
  EXPECT_THAT(AxisMarks(1, 40, false), ElementsAre(10, 20, 30, 40));
  EXPECT_THAT(AxisMarks(3, 60, true), ElementsAre(5, 10, 20, 50));
  EXPECT_THAT(AxisMarks(30, 30000, true), ElementsAre(100, 1000, 10000));
}

// The last learning rate of a warm-up may differ from those after it by rounding alone.
TEST(AxisMarks, EndForValuesThatDifferByRoundingAlone) {
  EXPECT_LE(AxisMarks(0.1, std::nextafter(0.1, 1), false).size(), 6);
  const ChartLine line{.label = "rate",
                       .points = {{1, std::nextafter(0.1, 1)}, {2, 0.1}, {3, 0.1}, {4, 0.1}}};
  const std::string figure = FigureOf(Chart{.title = "Learning rate", .unit = "", .lines = {line}});
  EXPECT_THAT(figure, AllOf(HasSubstr(">0.1</text>"), HasSubstr("M66.0 118.0L197.3 118.0")));
}

TEST(Reduced, KeepsTheExtremes) {
  std::vector<ChartPoint> points;
  for (int i = 0; i < 10000; ++i) points.push_back({i * 1.0, i == 5000 ? 9.0 : i == 5001 ? -9.0 : 0.0});
  const std::vector<ChartPoint> reduced = Reduced(points, 100);
  EXPECT_LE(reduced.size(), 200);
  int extremes = 0;
  for (const ChartPoint& point : reduced) extremes += point.y != 0 ? 1 : 0;
  EXPECT_EQ(extremes, 2);
}

}  // namespace
}  // namespace weft
