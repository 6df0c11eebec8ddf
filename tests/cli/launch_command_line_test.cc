// Command lines of `weft launch` and of its daemon.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/parsed_arguments.h"
#include "tests/support/temp_folder.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

LaunchCommand Launched(Arguments arguments) {
  arguments.insert(arguments.begin(), "launch");
  const absl::StatusOr<Command> command = ParseCommandLine(arguments);
  EXPECT_TRUE(command.ok()) << command.status();
  return command.ok() ? std::get<LaunchCommand>(*command) : LaunchCommand{};
}

TEST(LaunchCommandLine, SetsEveryFieldFromItsFlag) {
  const LaunchCommand launch = Launched({"-n",
                                         "4",
                                         "--host",
                                         "a:2,b:2",
                                         "--oversubscribe",
                                         "--mca",
                                         "x",
                                         "1",
                                         "--mca",
                                         "y",
                                         "",
                                         "--max-restarts",
                                         "7",
                                         "--restart-delay",
                                         "0",
                                         "--",
                                         "train",
                                         "--steps",
                                         "9",
                                         "--checkpoint-dir",
                                         "ck"});
  EXPECT_EQ(launch.options.ranks, 4);
  EXPECT_EQ(launch.options.hosts, "a:2,b:2");
  EXPECT_TRUE(launch.options.oversubscribe);
  EXPECT_THAT(launch.options.mca, ElementsAre(::testing::Pair("x", "1"), ::testing::Pair("y", "")));
  EXPECT_EQ(launch.options.max_restarts, 7);
  EXPECT_EQ(launch.options.restart_delay_s, 0);
  EXPECT_EQ(launch.before_program,
            "weft launch -n 4 --host a:2,b:2 --oversubscribe --mca x 1 --mca y '' --max-restarts 7 "
            "--restart-delay 0 --");
  EXPECT_THAT(launch.program, ElementsAre("train", "--steps", "9", "--checkpoint-dir", "ck"));
  EXPECT_EQ(launch.checkpoint.folder, "ck");
}

TEST(LaunchCommandLine, NeedsAHostfileThatCanBeRead) {
  const TempFolder folder;
  const std::string path = folder.Write("hosts", "localhost slots=2\n");
  EXPECT_EQ(Launched({"--hostfile", path, "--max-restarts", "0", "--", "train"}).options.hostfile, path);
  const auto expect_not_found = [](const std::string& wrong, const char* why) {
    const absl::Status status =
        ParseCommandLine({"launch", "--hostfile", wrong, "--max-restarts", "0", "--", "train"}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(status.message(), absl::StrCat("--hostfile ", wrong, ": ", why));
  };
  expect_not_found(folder / "none", "No such file or directory");
  expect_not_found(path + "/none", "Not a directory");
  expect_not_found(folder / ".", "is a folder: name a file");
  expect_not_found("/dev/null", "is no regular file: name one");
}

TEST(LaunchCommandLine, HasDefaults) {
  const LaunchCommand launch = Launched({"--", "train", "--checkpoint-dir", "ck"});
  EXPECT_FALSE(launch.options.ranks);
  EXPECT_EQ(launch.before_program, "weft launch --");
  EXPECT_EQ(launch.options.max_restarts, 3);
  EXPECT_FALSE(launch.options.oversubscribe);
}

TEST(LaunchCommandLine, RefusesWithARemedy) {
  struct Row {
    Arguments arguments;
    const char* message;
  };
  const Row rows[] = {
      {{}, "-- is missing between the flags of launch and the program: weft launch -n 4 -- train ..."},
      {{"-n", "2", "--layers", "2"}, "-- is missing between the flags of launch and the program"},
      {{"-n", "2", "train"}, "-- is missing between the flags of launch and the program"},
      {{"--mca", "-h", "x"}, "-- is missing between the flags of launch and the program"},
      {{"-n", "2", "train", "--", "train"}, "unexpected argument 'train': see weft launch --help"},
      {{"-n", "2", "--"}, "the program after -- is missing, but only train can be launched"},
      {{"--", "python"}, "the program after -- is 'python', but only train can be launched"},
      {{"-n", "x", "--", "train"}, "'x' is not a whole number"},
      {{"-n", "--", "train"}, "is given without a value"},
      {{"-n", "0", "--", "train"}, "-n 0 must be positive"},
      {{"--max-restarts", "-1", "--", "train"}, "--max-restarts -1 must not be negative"},
      {{"--host", "a:0", "--", "train"}, "--host: 'a:0' is not a host with its slots"},
      {{"--hots", "a", "--", "train"}, "unknown flag --hots; did you mean --host?"},
      {{"--mca", "a", "--", "train"}, "--mca"},
      {{"--mca", "a", "--oversubscribe", "--", "train"},
       "--mca: '--oversubscribe' is a flag: the value is missing"},
      {{"--", "train", "--stpes", "2"}, "unknown flag --stpes; did you mean --steps?"},
      {{"--", "train"},
       "a restart goes on from a checkpoint: give train a --checkpoint-dir, or launch with "
       "--max-restarts 0"},
  };
  for (const Row& row : rows) {
    Arguments arguments = row.arguments;
    arguments.insert(arguments.begin(), "launch");
    EXPECT_THAT(UsageErrorOf(arguments), HasSubstr(row.message));
  }
}

TEST(LaunchCommandLine, PrintsHelp) {
  const std::string help = PrintedTextOf({"launch", "--help"});
  for (const char* part : {"Usage: weft launch [FLAGS] -- train", "Ranks", "-n", "--host LIST", "Restarts",
                           "--max-restarts N", "[3]"}) {
    EXPECT_THAT(help, HasSubstr(part));
  }
  EXPECT_THAT(PrintedTextOf({"launch", "--", "train", "--help"}), HasSubstr("--steps"));
  EXPECT_THAT(PrintedTextOf({"--help"}), HasSubstr("launch "));
}

TEST(HostDaemonCommandLine, NeedsAFolderAndACommand) {
  const absl::StatusOr<Command> command = ParseCommandLine({"host-daemon", "/d", "orted", "-mca", "--help"});
  ASSERT_TRUE(command.ok()) << command.status();
  const auto& daemon = std::get<HostDaemonOptions>(*command);
  EXPECT_EQ(daemon.folder, "/d");
  EXPECT_THAT(daemon.command, ElementsAre("orted", "-mca", "--help"));
  EXPECT_THAT(UsageErrorOf({"host-daemon", "/d"}), HasSubstr("started by weft launch only"));
}

}  // namespace
}  // namespace weft
