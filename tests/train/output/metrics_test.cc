#include "weft/train/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <string>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/train/files/json.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_folder.h"
#include "weft/train/progress.h"

namespace {

std::atomic<int> link_error = 0;  // errno of hard links; 0: they are made.

}  // namespace

// Replaces the function of the C library.
extern "C" int link(const char* from, const char* to) noexcept {
  if (link_error == 0) return static_cast<int>(syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0));
  errno = link_error;
  return -1;
}

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::FileSizeLimit;

StepMetrics Example() {
  StepMetrics metrics;
  metrics.step = 3;
  metrics.loss = 2.5;
  metrics.grad_norm = 0.125;
  metrics.lr = 3e-4;
  metrics.tokens = 1024;
  metrics.tokens_seen = 3072;
  metrics.tokens_per_s = 12345;
  metrics.tflops = 0.25;
  metrics.step_ms = 83;
  metrics.exposed_comm_ms = 4;
  metrics.bytes = {1, 2, 3, 0, 4};
  metrics.wire_bytes = 5;
  metrics.wire_saved_bytes = 8;
  metrics.cross_domain_bytes = 13;
  metrics.copied_bytes = 6;
  metrics.peak_buffer_bytes = 7;
  metrics.peak_bytes = {3, 4, 9, 11, 10};
  metrics.allocated_bytes = 12;
  metrics.rss_bytes = 8 << 20;
  return metrics;
}

TEST(Metrics, AreOneJsonObjectWithEveryFieldPerLine) {
  const TempFolder folder;
  {
    MetricsFile file = MetricsFile::Create(folder / "m.jsonl").value();
    ASSERT_TRUE(file.Write(Example()).ok());
    ASSERT_TRUE(file.Write(Example()).ok());
  }
  const std::string line =
      R"({"step":3,"loss":2.5,"grad_norm":0.125,"lr":0.0003,"tokens":1024,"tokens_seen":3072,"tokens_per_s":12345.0,)"
      R"("tflops":0.25,"step_ms":83.0,"exposed_comm_ms":4.0,)"
      R"("bytes":{"all_gather":1,"reduce_scatter":2,"all_reduce":3,"context":0,"control":4,"optimizer":0},)"
      R"("wire_bytes":5,"wire_saved_bytes":8,"cross_domain_bytes":13,"copied_bytes":6,"peak_buffer_bytes":7,)"
      R"("peak_bytes":{"images":3,"gradients":4,"shards":9,"context":11,"scratch":10},"allocated_bytes":12,"rss_bytes":8388608,)"
      R"("skipped_steps":0})"
      "\n";
  EXPECT_EQ(ReadFile(folder / "m.jsonl"), line + line);
}

bool LacksKey(const StepMetrics& metrics, const char* key) {
  const Json json = ParseJson(ToJson(metrics));
  return json.is_object() && !json.contains(key);
}

TEST(Metrics, HaveAnEvaluationLossOnlyAfterAnEvaluation) {
  StepMetrics metrics = Example();
  EXPECT_TRUE(LacksKey(metrics, "eval_loss"));
  metrics.eval_loss = 1.25;
  EXPECT_EQ(ParseJson(ToJson(metrics))["eval_loss"], 1.25);
}

TEST(Metrics, HaveTheLossScaleOnlyInF16) {
  StepMetrics metrics = Example();
  EXPECT_TRUE(LacksKey(metrics, "loss_scale"));
  metrics.loss_scale = {.scale = 65536, .skipped = true};
  const auto json = ParseJson(ToJson(metrics));
  EXPECT_EQ(json["loss_scale"], 65536);
  EXPECT_EQ(json["skipped"], true);
}

TEST(Metrics, HaveTheIndexersOnlyWithSparseAttention) {
  StepMetrics metrics = Example();
  EXPECT_TRUE(LacksKey(metrics, "indexer_loss"));
  metrics.indexers = {0.5, 0.25, 0.875};
  const auto json = ParseJson(ToJson(metrics));
  EXPECT_EQ(json["indexer_loss"], 0.5);
  EXPECT_EQ(json["indexer_grad_norm"], 0.25);
  EXPECT_EQ(json["attention_mass_selected"], 0.875);
}

TEST(Metrics, KeepAllDigitsOfTheLoss) {
  StepMetrics metrics = Example();
  metrics.loss = 5.545177444479562;
  EXPECT_EQ(ParseJson(ToJson(metrics))["loss"].get<double>(), metrics.loss);
}

TEST(Metrics, AreValidJsonIfALossIsNotFinite) {
  StepMetrics metrics = Example();
  metrics.loss = std::numeric_limits<double>::quiet_NaN();
  metrics.grad_norm = std::numeric_limits<double>::infinity();
  const auto json = ParseJson(ToJson(metrics));
  EXPECT_TRUE(json["loss"].is_null());
  EXPECT_TRUE(json["grad_norm"].is_null());
}

TEST(MetricsFile, NamesAFileThatCannotBeWritten) {
  const TempFolder folder;
  folder.Write("file", "");
  EXPECT_THAT(std::string(MetricsFile::Create(folder / "file/m.jsonl").status().message()),
              HasSubstr("cannot write"));
  EXPECT_THAT(std::string(MetricsFile::Create(folder / "none/m.jsonl").status().message()),
              HasSubstr("No such file"));
}

TEST(MetricsFile, RefusesAFileWithLinesOfAnEarlierRun) {
  const TempFolder folder;
  const std::string path = folder.Write("m.jsonl", "{}\n");
  const absl::Status status = MetricsFile::Create(path).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("has 3 bytes of an earlier run: move the file away"));
  EXPECT_EQ(ReadFile(path), "{}\n");
}

TEST(MetricsFile, FollowsNoLinkAndWaitsForNoFifo) {
  const TempFolder folder;
  folder.Write("empty", "");
  std::filesystem::create_symlink(folder / "empty", folder / "link");
  EXPECT_THAT(std::string(MetricsFile::Create(folder / "link").status().message()), HasSubstr("is a link"));
  ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
  EXPECT_FALSE(MetricsFile::Create(folder / "fifo").ok());
}

TEST(MetricsFile, TakesAnEmptyFileTheNullDeviceAndStandardOutput) {
  const TempFolder folder;
  const std::string empty = folder.Write("empty", "");
  for (const std::string& path : {empty, std::string("/dev/null"), std::string("/dev/stdout")}) {
    auto file = MetricsFile::Create(path);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_TRUE(file->Write(Example()).ok());
  }
  EXPECT_EQ(ReadFile(empty), ToJson(Example()) + "\n");
}

TEST(MetricsFile, FollowsTheOtherLinesOfAStandardOutputThatIsAFile) {
  const TempFolder folder;
  const std::string path = folder.Write("log", "model\n");
  std::fflush(stdout);
  const int terminal = dup(STDOUT_FILENO);
  const int log = open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  ASSERT_EQ(dup2(log, STDOUT_FILENO), STDOUT_FILENO);
  absl::StatusOr<MetricsFile> file = MetricsFile::Create("/dev/stdout");
  const absl::Status written = file.ok() ? file->Write(Example()) : file.status();
  dup2(terminal, STDOUT_FILENO);
  close(terminal);
  close(log);
  EXPECT_OK(written);
  EXPECT_EQ(ReadFile(path), "model\n" + ToJson(Example()) + "\n");
}

TEST(MetricsFile, RefusesAFileThatAnotherRunWrites) {
  const TempFolder folder;
  const std::string path = folder / "m.jsonl";
  {
    MetricsFile first = MetricsFile::Create(path).value();
    EXPECT_TRUE(absl::IsInvalidArgument(MetricsFile::Create(path).status()));
    ASSERT_TRUE(first.Write(Example()).ok());
    EXPECT_TRUE(absl::IsInvalidArgument(MetricsFile::Continue(path, 0).status()));
    EXPECT_TRUE(absl::IsInvalidArgument(KeepOldMetrics(path).status()));
    EXPECT_EQ(ReadFile(path), ToJson(Example()) + "\n");
  }
  EXPECT_TRUE(MetricsFile::Continue(path, 3).ok());
}

TEST(MetricsFile, KeepsAnOldFileWithoutHardLinks) {
  const TempFolder folder;
  for (const int error : {EPERM, EOPNOTSUPP}) {
    const std::string path = folder.Write("m.jsonl", "of an earlier run\n");
    folder.Write("m.jsonl.1", "of another run\n");
    std::filesystem::remove(folder / "m.jsonl.2");
    link_error = error;
    const absl::StatusOr<std::string> aside = KeepOldMetrics(path);
    link_error = 0;
    ASSERT_OK(aside.status());
    EXPECT_EQ(*aside, path + ".2");
    EXPECT_EQ(ReadFile(*aside), "of an earlier run\n");
    EXPECT_EQ(ReadFile(path + ".1"), "of another run\n");
    EXPECT_FALSE(std::filesystem::exists(path));
  }
}

TEST(MetricsFile, KeepsTheLinesThatAResumedRunRepeats) {
  const TempFolder folder;
  const std::string kept = "{\"step\":1}\n{\"step\":2}\n";
  const std::string later = "{\"step\":3}\n{\"step\":4}\n{\"st";
  const std::string path = folder.Write("m.jsonl", kept + later);
  folder.Write("m.jsonl.1", "other");
  ASSERT_OK_AND_ASSIGN(const MetricsFile file, MetricsFile::Continue(path, 2));
  EXPECT_EQ(file.later_lines(), path + ".2");
  EXPECT_EQ(ReadFile(path), kept);
  EXPECT_EQ(ReadFile(path + ".1"), "other");
  EXPECT_EQ(ReadFile(path + ".2"), later);
}

TEST(MetricsFile, HasNoLaterLinesIfTheRunRepeatsNone) {
  const TempFolder folder;
  const std::string path = folder.Write("m.jsonl", "{\"step\":1}\n{\"step\":2}\n{\"st");
  ASSERT_OK_AND_ASSIGN(const MetricsFile file, MetricsFile::Continue(path, 2));
  EXPECT_EQ(file.later_lines(), "");
  EXPECT_EQ(ReadFile(path), "{\"step\":1}\n{\"step\":2}\n");
  EXPECT_EQ(folder.FileCount(), 1);
}

TEST(MetricsFile, RemovesNothingIfLaterLinesCannotBeKept) {
  const TempFolder folder;
  const std::string lines = "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n";
  const std::string path = folder.Write("m.jsonl", lines);
  const FileSizeLimit limit(15);
  EXPECT_THAT(MetricsFile::Continue(path, 1).status().message(), HasSubstr("cannot write '" + path + ".1'"));
  EXPECT_EQ(ReadFile(path), lines);
  EXPECT_EQ(folder.FileCount(), 1);
}

// A full disk takes a part of a line.
TEST(MetricsFile, KeepsWholeLinesOnlyAfterAFailedWrite) {
  const TempFolder folder;
  const std::string path = folder / "m.jsonl";
  ASSERT_OK_AND_ASSIGN(MetricsFile file, MetricsFile::Create(path));
  ASSERT_OK(file.Write(Example()));
  const auto size = std::filesystem::file_size(path);
  const FileSizeLimit limit(size + 10);
  EXPECT_THAT(file.Write(Example()).message(), HasSubstr("cannot write"));
  EXPECT_EQ(std::filesystem::file_size(path), size);
}

TEST(MetricsFile, LosesNoLineIfItCannotBeOpenedForReading) {
  const TempFolder folder;
  const std::string path = folder.Write("m.jsonl", ToJson(Example()) + "\n");
  const std::string lines = ReadFile(path);
  const int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(next, 0);
  close(next);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit one_more = {static_cast<rlim_t>(next) + 1, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &one_more), 0);
  const absl::Status status = MetricsFile::Continue(path, 3).status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_THAT(status.message(), HasSubstr("cannot read '" + path + "'"));
  EXPECT_EQ(ReadFile(path), lines);
}

TEST(MetricsFile, NamesAReadThatFails) {
  const std::string path = "/proc/self/mem";  // A regular file without a byte at its beginning.
  EXPECT_THAT(MetricsFile::Continue(path, 3).status().message(), HasSubstr("cannot read '" + path + "'"));
}

TEST(Progress, HasLossRatesTimeMemoryAndEta) {
  EXPECT_EQ(ProgressLine(Example(), 100, 97 * 0.083),
            "step 3/100  loss 2.5000  norm 0.125  12.3k tokens/s  0.250 TFLOP/s  83 ms  comm 4 ms  8 MiB  "
            "ETA 0:08");
  EXPECT_THAT(ProgressLine(Example(), 100, 3725), HasSubstr("ETA 1:02:05"));
}

std::string PrintedMetrics(bool terminal) {
  const TempFolder folder;
  std::FILE* file = std::fopen((folder / "out").c_str(), "w");
  {
    ProgressPrinter printer(file, 4, terminal);
    StepMetrics metrics = Example();
    printer.Print(metrics, /*skipped=*/false);
    metrics.tokens_per_s = 1;
    printer.Print(metrics, /*skipped=*/false);
  }
  std::fclose(file);
  return ReadFile(folder / "out");
}

TEST(Progress, PrintsPlainLinesWithoutATerminal) {
  const std::string text = PrintedMetrics(false);
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
}

TEST(Progress, KeepsTheLineOfAnEvaluationOnATerminal) {
  const TempFolder folder;
  std::FILE* file = std::fopen((folder / "out").c_str(), "w");
  {
    ProgressPrinter printer(file, 4, /*terminal=*/true);
    StepMetrics metrics = Example();
    metrics.eval_loss = 2.25;
    printer.Print(metrics, /*skipped=*/false);
  }
  std::fclose(file);
  EXPECT_THAT(ReadFile(folder / "out"), ::testing::EndsWith("\neval after step 3  loss 2.2500\n"));
}

TEST(Progress, LeavesOutFieldsThatDoNotFitTheTerminal) {
  const std::string whole = ProgressLine(Example(), 100, 1);
  EXPECT_EQ(ProgressLine(Example(), 100, 1, whole.size()), whole);
  EXPECT_EQ(ProgressLine(Example(), 100, 1, 79),
            "step 3/100  loss 2.5000  norm 0.125  12.3k tokens/s  83 ms  8 MiB  ETA 0:01");
  EXPECT_EQ(ProgressLine(Example(), 100, 1, 1), "step 3/100  loss 2.5000  norm 0.125");
  for (size_t columns = 40; columns <= whole.size(); ++columns) {
    EXPECT_LE(ProgressLine(Example(), 100, 1, columns).size(), columns);
  }
}

TEST(Progress, FitsEveryWidthOfATerminal) {
  EXPECT_EQ(TerminalLine(Example(), 10, 1, 79),
            "[###-------]  step 3/10  loss 2.5000  norm 0.125  12.3k tokens/s  ETA 0:01");
  EXPECT_EQ(TerminalLine(Example(), 10, 1, 59), ProgressLine(Example(), 10, 1, 59));
  for (size_t columns = 1; columns <= 130; ++columns) {
    EXPECT_LE(TerminalLine(Example(), 10, 1, columns).size(), columns);
  }
}

TEST(Progress, ShowsTheLossOfTheIndexersAsLongAsItFits) {
  StepMetrics metrics = Example();
  metrics.indexers = {0.5, 0.25, 0.875};
  EXPECT_EQ(ProgressLine(metrics, 100, 1, 79),
            "step 3/100  loss 2.5000  norm 0.125  indexer 0.5000  12.3k tokens/s  ETA 0:01");
  EXPECT_EQ(ProgressLine(metrics, 100, 1, 60), "step 3/100  loss 2.5000  norm 0.125  indexer 0.5000");
  EXPECT_EQ(ProgressLine(metrics, 100, 1, 1), "step 3/100  loss 2.5000  norm 0.125");
}

TEST(Progress, OverwritesTheWholeLineOnATerminal) {
  const std::string text = PrintedMetrics(true);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_EQ(text.front(), '\r');
  const std::string erase = "\033[K";
  EXPECT_THAT(text, ::testing::EndsWith(erase + "\n"));
  EXPECT_LT(text.find(erase), text.rfind('\r'));
}

TEST(Progress, KeepsTheLineOfASkippedStepOnATerminal) {
  const TempFolder folder;
  std::FILE* file = std::fopen((folder / "out").c_str(), "w");
  {
    ProgressPrinter printer(file, 4, /*terminal=*/true);
    StepMetrics metrics = Example();
    metrics.grad_norm = std::numeric_limits<double>::infinity();
    printer.Print(metrics, /*skipped=*/true);
  }
  std::fclose(file);
  EXPECT_THAT(
      ReadFile(folder / "out"),
      ::testing::EndsWith("\nstep 3 skipped: the loss is 2.5 and the gradient norm inf; no weight was "
                          "updated\n"));
}

}  // namespace
}  // namespace weft
