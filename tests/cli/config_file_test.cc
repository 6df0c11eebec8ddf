// Configuration files of `weft train --config`.
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/parsed_arguments.h"
#include "tests/support/temp_folder.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CommandLine, ReadsKeysOfAFileThatTheCommandLineOverrides) {
  const TempFolder folder;
  const std::string file = folder.Write("run.toml",
                                        "# A run.\n"
                                        "steps = 7\n"
                                        "lr = 1e-2  # high\n"
                                        "data = [\"x\", \"y z\"]\n"
                                        "shuffle = false\n"
                                        "lr-schedule = \"cosine\"\n");
  const TrainConfig config = ParsedConfig({"--config", file, "--steps", "9"});
  EXPECT_EQ(config.optimizer.steps, 9);
  EXPECT_EQ(config.optimizer.lr, 1e-2);
  EXPECT_THAT(config.data.paths, ElementsAre("x", "y z"));
  EXPECT_FALSE(config.data.shuffle);
  EXPECT_EQ(config.optimizer.lr_schedule, LrDecay::kCosine);
  const std::string zeros = folder.Write("zeros.toml", "steps = 010\nseed = \"08\"\n");
  EXPECT_EQ(ParsedConfig({"--config", zeros}).optimizer.steps, 10);
  EXPECT_EQ(ParsedConfig({"--config", zeros}).seed, 8);
}

TEST(CommandLine, ReadsTheFlagsThatARunSavedWhateverTheirCharacters) {
  const TempFolder folder;
  std::string name = "caf\u00e9 \"x\" \\u0041 \x7f";
  for (char c = 1; c < 32; ++c) name += c;
  const TrainConfig config = ParsedConfig({"--data", name, "--steps", "9"});
  const std::string file = folder.Write("run.toml", config.given_flags);
  const TrainConfig again = ParsedConfig({"--config", file});
  EXPECT_THAT(again.data.paths, ElementsAre(name));
  EXPECT_EQ(again.optimizer.steps, 9);
}

TEST(CommandLine, NamesFileAndKeyOfABadConfigurationFile) {
  const TempFolder folder;
  const auto error = [&](const std::string& text) {
    return UsageErrorOf({"train", "--config", folder.Write("run.toml", text)});
  };
  EXPECT_THAT(error("stpes = 3\n"), HasSubstr("run.toml: unknown key 'stpes'; did you mean 'steps'?"));
  EXPECT_THAT(error("steps = \"a\"\n"), HasSubstr("run.toml: --steps: 'a' is not a whole number"));
  EXPECT_THAT(error("[train]\nsteps = 3\n"), HasSubstr("sections are not supported"));
  EXPECT_THAT(error("steps = 3\nsteps = 4\n"),
              HasSubstr("run.toml: key 'steps' is given in line 1 and in line 2: keep one of them"));
  EXPECT_THAT(error("steps = 3\nlr = 1.0\nsteps = 4\n"), HasSubstr("in line 1 and in line 3"));
  EXPECT_THAT(error("steps = [3, 4]\n"), HasSubstr("key 'steps' takes one value, not a list"));
  EXPECT_THAT(error("data = []\n"), HasSubstr("key 'data' has an empty list"));
  EXPECT_THAT(error("config = \"x\"\n"), HasSubstr("allowed on the command line only"));
  EXPECT_THAT(error("lr-schedule = \"cosin\"\n"), HasSubstr("did you mean cosine?"));
  // weft train must be able to read the file of a plan.
  EXPECT_THAT(UsageErrorOf({"plan", "--config", folder.Write("run.toml", "ranks = 2\n")}),
              HasSubstr("run.toml: 'ranks' is allowed on the command line only"));
}

// The exit code of a file that cannot be read is that of data that cannot be read.
TEST(CommandLine, TakesAConfigurationFileThatCannotBeReadForABadFile) {
  const TempFolder folder;
  const auto expect_bad_file = [](const std::string& path, const char* why) {
    const absl::Status status = ParseCommandLine({"train", "--config", path}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(status.message(), absl::StrCat("--config ", path, ": ", why));
  };
  expect_bad_file(folder / "none.toml", "No such file or directory");
  expect_bad_file(folder.Write("run.toml", "") + "/none", "Not a directory");
  expect_bad_file(folder.str(), "is a folder: name a file");
  EXPECT_THAT(UsageErrorOf({"train", "--config", ""}), HasSubstr("--config: the value is empty"));
}

TEST(CommandLine, RefusesAListThatAFileGivesTwice) {
  const TempFolder folder;
  for (const char* text : {"data = \"a\"\ndata = \"b\"\n", "data = \"a\"\nsteps = 3\ndata = [\"b\"]\n"}) {
    EXPECT_THAT(UsageErrorOf({"train", "--config", folder.Write("run.toml", text)}),
                HasSubstr("key 'data' is given in line 1 and in line "))
        << text;
    EXPECT_THAT(UsageErrorOf({"train", "--config", folder.Write("run.toml", text)}),
                HasSubstr("write all its values in one list"))
        << text;
  }
}

}  // namespace
}  // namespace weft
