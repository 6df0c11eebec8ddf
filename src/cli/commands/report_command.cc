#include "src/cli/commands/report_command.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "src/cli/nearest.h"
#include "weft/core/status.h"

namespace weft {
namespace {

// The value of the flag arguments[i], which is `flag` or begins with `flag`=. Sets `i` to the last argument
// of the two.
absl::StatusOr<std::string> ValueOf(const std::string& flag, const std::vector<std::string>& arguments,
                                    size_t& i) {
  std::string value;
  if (arguments[i] != flag) {
    value = arguments[i].substr(flag.size() + 1);
  } else if (i + 1 == arguments.size()) {
    return absl::InvalidArgumentError(absl::StrCat(flag, " is given without a value"));
  } else if (LooksLikeFlag(arguments[i + 1])) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " is given without a value: write ./", arguments[i + 1], " if that is a path"));
  } else {
    value = arguments[++i];
  }
  if (value.empty()) return absl::InvalidArgumentError(absl::StrCat(flag, ": the path is empty"));
  return value;
}

}  // namespace

std::string ReportHelp() {
  return "Usage: weft report METRICS.jsonl... -o REPORT.html [--trace TRACE.json]\n\n"
         "Writes a page with the curves, bytes and configuration of one run, or of up to\n"
         "six beside each other. The page is one file and loads nothing from elsewhere.\n\n"
         "  METRICS.jsonl         A file of weft train --metrics\n"
         "  -o, --output FILE     The page to write\n"
         "  --trace FILE          A file of weft train --trace, for the times of each\n"
         "                        parameter group\n";
}

std::string TraceHelp() {
  return "Usage: weft trace TRACE.json\n\n"
         "Prints the mean times of each parameter group: its gathers and reductions, its\n"
         "computation, and the communication that computation waited for. A second table\n"
         "divides computation by modules.\n\n"
         "  TRACE.json    A file of weft train --trace\n";
}

absl::StatusOr<ReportOptions> ParseReportCommand(const std::vector<std::string>& arguments) {
  ReportOptions options;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (!LooksLikeFlag(argument)) {
      options.runs.push_back(argument);
      continue;
    }
    const size_t equals = absl::StartsWith(argument, "--") ? argument.find('=') : std::string::npos;
    const std::string flag = argument.substr(0, equals);
    const bool is_output = flag == "-o" || flag == "--output";
    if (!is_output && flag != "--trace") return UnknownFlag(flag, "report", {"output", "trace"});
    std::string& path = is_output ? options.output : options.trace;
    if (!path.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(flag, " is given twice: keep one of them"));
    }
    WEFT_ASSIGN_OR_RETURN(path, ValueOf(flag, arguments, i));
  }
  if (options.runs.empty()) {
    return absl::InvalidArgumentError("weft report needs a file of weft train --metrics: see --help");
  }
  if (options.runs.size() > ReportOptions::kMaxRuns) {
    return absl::InvalidArgumentError(absl::StrCat("weft report compares at most ", ReportOptions::kMaxRuns,
                                                   " runs, not ", options.runs.size(), ": leave some out"));
  }
  if (options.output.empty()) {
    return absl::InvalidArgumentError("weft report needs a name for the page: -o report.html");
  }
  return options;
}

absl::StatusOr<TraceCommand> ParseTraceCommand(const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    if (LooksLikeFlag(argument)) return UnknownFlag(argument, "trace");
  }
  if (arguments.size() != 1) {
    return absl::InvalidArgumentError("weft trace needs one file of weft train --trace");
  }
  return TraceCommand{arguments.front()};
}

}  // namespace weft
