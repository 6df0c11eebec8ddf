#include "src/train/output/run_console.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include <absl/functional/function_ref.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The text that `print` leaves on a terminal or in a file.
std::string ConsoleText(bool terminal, absl::FunctionRef<void(RunConsole&)> print) {
  char* text = nullptr;
  size_t bytes = 0;
  std::FILE* stream = open_memstream(&text, &bytes);
  {
    RunConsole console(stream, /*total_steps=*/4, terminal);
    print(console);
  }
  std::fclose(stream);
  const std::unique_ptr<char, decltype(&std::free)> owner(text, &std::free);
  return {text, bytes};
}

TEST(RunConsole, PrintsALineForEachMessage) {
  const std::string text = ConsoleText(/*terminal=*/false, [](RunConsole& console) {
    console.PrintConfiguration({{"mesh", "1 x 2", ""}, {"data", "text", "--data"}}, DType::kF32);
    console.Warn("slow");
    console.PrintSaved("");
    console.PrintSaved("step-3");
    console.PrintEvaluation(3, 2.25);
    console.PrintTrace("t.json", StepRange{3, 5});
    console.PrintTrace("t.json", std::nullopt);
    console.PrintWeightsHash(0xabc);
    console.PrintExported("model");
  });
  EXPECT_EQ(text,
            "mesh  1 x 2\n"
            "data  text  (--data)\n"
            "warning  slow\n"
            "saved step-3\n"
            "eval after step 3  loss 2.2500\n"
            "trace of steps 3 to 5 in t.json\n"
            "warning  t.json is not written: the run did none of the steps of --trace\n"
            "weights xxh64:0000000000000abc\n"
            "exported to model\n");
}

TEST(RunConsole, PrintsAHugeLossScaleInShort) {
  const auto line = [](double scale) {
    StepMetrics metrics;
    metrics.loss_scale = {.scale = scale, .skipped = false};
    return ConsoleText(/*terminal=*/false,
                       [&](RunConsole& console) { console.PrintStep(metrics, /*skipped=*/false); });
  };
  EXPECT_THAT(line(1e38F), HasSubstr("  scale 1e+38  "));
  EXPECT_THAT(line(16777216), HasSubstr("  scale 16777216  "));
  EXPECT_THAT(line(0.25), HasSubstr("  scale 0.25  "));
}

TEST(RunConsole, EndsTheLineOfAStepBeforeAMessage) {
  const StepMetrics metrics;
  const std::string step = ConsoleText(/*terminal=*/true, [&](RunConsole& console) {
    console.PrintStep(metrics, /*skipped=*/false);
    console.EndProgress();
    console.EndProgress();
  });
  EXPECT_THAT(step, EndsWith("\033[K\n"));
  const std::string saved = ConsoleText(/*terminal=*/true, [&](RunConsole& console) {
    console.PrintStep(metrics, /*skipped=*/false);
    console.PrintSaved("step-3");
  });
  EXPECT_EQ(saved, step + "saved step-3\n");
}

TEST(RunConsole, IsSilentWithoutAStream) {
  ::testing::internal::CaptureStdout();
  RunConsole console(nullptr, /*total_steps=*/4, /*terminal=*/true);
  console.PrintConfiguration({{"mesh", "1 x 2", ""}}, DType::kBF16);
  console.PrintStep({}, /*skipped=*/true);
  console.PrintLine("text");
  console.Warn("slow");
  console.PrintEvaluation(3, 2.25);
  console.EndProgress();
  EXPECT_FALSE(console.has_failed());
  EXPECT_THAT(::testing::internal::GetCapturedStdout(), IsEmpty());
}

}  // namespace
}  // namespace weft
