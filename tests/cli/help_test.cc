// Help texts of the program and of its commands.
#include <algorithm>

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_split.h>
#include <absl/strings/string_view.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/parsed_arguments.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

// The text with one space for each run of spaces and line breaks.
std::string OneSpaced(std::string text) {
  absl::RemoveExtraAsciiWhitespace(&text);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// The fields of unset flags are empty.
TEST(Help, NamesTheDefaultsOfSparseAttention) {
  EXPECT_FALSE(ParsedConfig({}).attention.sparse_config().has_value());
  const AttentionConfig attention = ParsedConfig({"--attention", "dsa"}).attention;
  EXPECT_EQ(attention.sparse_config(), (SparseAttentionConfig{512, 4, 32}));
  EXPECT_EQ(attention.indexer_training()->warmup_steps, 0);
  EXPECT_EQ(attention.indexer_training()->loss_coef, 1);
  const std::string help = OneSpaced(PrintedTextOf({"train", "--help"}));
  for (const char* text : {"selects [512]", "indexer [4]", "number [32]", "attention [0]", "loss [1]"}) {
    EXPECT_THAT(help, HasSubstr(text));
  }
}

TEST(Help, IsInGroups) {
  const std::string help = PrintedTextOf({"train", "--help"});
  for (const char* part :
       {"Model", "Data", "Optimizer", "Parallelism", "Output", "--shuffle BOOL", "[0.0003]"}) {
    EXPECT_THAT(help, HasSubstr(part));
  }
  EXPECT_THAT(help, HasSubstr("--config FILE.toml "));
  EXPECT_THAT(OneSpaced(help), HasSubstr("see weft diagnose [weft-dump]"));
  EXPECT_LT(std::count(help.begin(), help.end(), '\n'), 190);
  const std::string program = PrintedTextOf({"--help"});
  EXPECT_THAT(program, HasSubstr("Commands:\n  train       Train a Llama model\n  plan        Forecast"));
  EXPECT_THAT(program, ::testing::Not(HasSubstr("host-daemon")));
}

TEST(Help, HasLinesOfAtMost80Columns) {
  const std::string program = PrintedTextOf({"--help"});
  const auto expect_narrow = [](const std::string& text) {
    for (const absl::string_view line : absl::StrSplit(text, '\n')) EXPECT_LE(line.size(), 80u) << line;
  };
  expect_narrow(program);
  int commands = 0;
  for (const absl::string_view line : absl::StrSplit(program, '\n')) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.empty() || !absl::StartsWith(line, "  ") || absl::StartsWith(words[0], "--")) continue;
    SCOPED_TRACE(words[0]);
    expect_narrow(PrintedTextOf({words[0], "--help"}));
    ++commands;
  }
  EXPECT_EQ(commands, 8);
}

}  // namespace
}  // namespace weft
