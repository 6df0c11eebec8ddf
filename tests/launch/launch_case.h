// Launch with a script in place of mpirun. It runs the rank as a child, as mpirun does, and returns its exit
// code.
#pragma once

#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/launch/processes.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_folder.h"
#include "weft/launch/launch.h"

namespace weft {

// $FOLDER has the files of the test, $LAUNCHER is the process that calls Launch, $ATTEMPT counts from 1.
// $REPLACED, if set, is a program that is removed while it runs, as a build does.
inline constexpr const char* kMpirun = R"(#!/bin/sh
echo "$@" >>"$FOLDER/calls"
echo "$OMPI_MCA_orte_tmpdir_base" >>"$FOLDER/folders"
ATTEMPT=$(wc -l <"$FOLDER/calls"); export ATTEMPT
touch "$OMPI_MCA_orte_tmpdir_base/left"
[ -z "$REPLACED" ] || rm -f "$REPLACED"
[ ! -e "$FOLDER/before" ] || . "$FOLDER/before"
OMPI_COMM_WORLD_RANK=0 sh "$FOLDER/rank" &
rank=$!
trap 'kill -KILL $rank; exit 143' TERM
wait $rank
code=$?
[ ! -e "$FOLDER/after" ] || . "$FOLDER/after"
exit $code
)";

class LaunchTest : public ::testing::Test {
 protected:
  LaunchTest() {
    std::signal(SIGHUP, SIG_DFL);  // The tests may run under nohup.
    setenv("FOLDER", folder_.str().c_str(), 1);
    setenv("LAUNCHER", absl::StrCat(getpid()).c_str(), 1);
    options_.mpirun = Script("mpirun", kMpirun);
    options_.hosts = "this";  // With hosts, the launch does not know if ranks have started.
    options_.restart_delay_s = 0;
  }

  std::string Script(const std::string& name, const std::string& text) {
    std::string path = folder_.Write(name, text);
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }

  // The exit code of a launch whose ranks run `rank`, a shell script.
  int LaunchRank(const std::string& rank) {
    folder_.Write("rank", rank);
    const absl::StatusOr<int> code = Launch(options_, {{"PROGRAM", "train"}, [] {
                                                         return std::vector<std::string>{"--resume", "auto"};
                                                       }});
    EXPECT_OK(code);
    EXPECT_THAT(internal::DescendantsOf(getpid()), ::testing::IsEmpty());
    for (const std::string& used : Lines("folders")) EXPECT_FALSE(std::filesystem::exists(used)) << used;
    return code.value_or(-1);
  }

  // The exit code of a launch whose attempts end with these exit codes.
  int LaunchWithCodes(const std::vector<std::string>& codes) {
    std::string rank;
    for (size_t i = 0; i < codes.size(); ++i) {
      absl::StrAppend(&rank, "[ $ATTEMPT != ", i + 1, " ] || exit ", codes[i], "\n");
    }
    return LaunchRank(rank);
  }

  std::vector<std::string> Lines(const std::string& name) const {
    return absl::StrSplit(ReadFile(folder_ / name), '\n', absl::SkipEmpty());
  }
  std::vector<std::string> Calls() const { return Lines("calls"); }

  TempFolder folder_;
  LaunchOptions options_;
};

}  // namespace weft
