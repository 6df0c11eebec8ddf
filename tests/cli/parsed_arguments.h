// Results of command lines, for tests.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "src/cli/command_line.h"

namespace weft {

using Arguments = std::vector<std::string>;

// The configuration of `weft train` with these flags.
inline TrainConfig ParsedConfig(Arguments flags) {
  flags.insert(flags.begin(), "train");
  const absl::StatusOr<Command> command = ParseCommandLine(flags);
  EXPECT_TRUE(command.ok()) << command.status();
  return command.ok() ? std::get<TrainConfig>(*command) : TrainConfig{};
}

// The message of arguments that are refused.
inline std::string UsageErrorOf(const Arguments& arguments) {
  const absl::StatusOr<Command> command = ParseCommandLine(arguments);
  EXPECT_EQ(command.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(command.status().message());
}

// The text of arguments that ask for one, as --help does.
inline std::string PrintedTextOf(const Arguments& arguments) {
  const absl::StatusOr<Command> command = ParseCommandLine(arguments);
  EXPECT_TRUE(command.ok()) << command.status();
  return command.ok() ? std::get<PrintText>(*command).text : "";
}

}  // namespace weft
