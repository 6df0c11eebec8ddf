#include "weft/train/progress.h"

#include <algorithm>
#include <cmath>
#include <sys/ioctl.h>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

namespace weft {
namespace {

// Weight of the newest step in the moving average of step times, from which the ETA is estimated.
constexpr double kNewestWeight = 0.1;

std::string Short(double value) {
  if (value >= 1e6) {
    return absl::StrFormat("%.1fM", value / 1e6);
  }
  return value >= 1e4 ? absl::StrFormat("%.1fk", value / 1e3) : absl::StrFormat("%.0f", value);
}

std::string Duration(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  return whole >= 3600 ? absl::StrFormat("%d:%02d:%02d", whole / 3600, whole / 60 % 60, whole % 60)
                       : absl::StrFormat("%d:%02d", whole / 60, whole % 60);
}

}  // namespace

std::string LossesAndNorms(const StepMetrics& metrics) {
  std::string text = absl::StrCat("the loss is ", metrics.loss, " and the gradient norm ", metrics.grad_norm);
  if (metrics.indexers) {
    absl::StrAppend(&text, ", those of the indexers ", metrics.indexers->loss, " and ",
                    metrics.indexers->grad_norm);
  }
  if (metrics.loss_scale) absl::StrAppend(&text, " at the loss scale ", metrics.loss_scale->scale);
  return text;
}

std::string ProgressLine(const StepMetrics& metrics, int64_t total_steps, double seconds_left,
                         size_t columns) {
  struct Field {
    std::string text;
    int importance;  // Fields with lower numbers are left out first.
  };
  constexpr int kAlways = 7;
  std::vector<Field> fields = {
      {absl::StrFormat("step %d/%d", metrics.step, total_steps), kAlways},
      {absl::StrFormat("loss %.4f", metrics.loss), kAlways},
      {absl::StrFormat("norm %.3f", metrics.grad_norm), kAlways},
      {absl::StrFormat("%s tokens/s", Short(metrics.tokens_per_s)), 5},
      {absl::StrFormat("%.3f TFLOP/s", metrics.tflops), 0},
      {absl::StrFormat("%.0f ms", metrics.step_ms), 3},
      {absl::StrFormat("comm %.0f ms", metrics.exposed_comm_ms), 1},
      {absl::StrFormat("%d MiB", metrics.rss_bytes >> 20), 2},
      {absl::StrFormat("ETA %s", Duration(seconds_left)), 4},
  };
  if (metrics.indexers)
    fields.insert(fields.begin() + 3, {absl::StrFormat("indexer %.4f", metrics.indexers->loss), 6});
  if (metrics.loss_scale) {
    const double scale = metrics.loss_scale->scale;
    const bool is_short = scale >= 1 && scale < 1e9;
    fields.insert(fields.begin() + 3,
                  {is_short ? absl::StrFormat("scale %.0f", scale) : absl::StrFormat("scale %g", scale), 1});
  }
  const auto join = [&](int min_importance) {
    std::string line;
    for (const Field& field : fields) {
      if (field.importance >= min_importance) absl::StrAppend(&line, line.empty() ? "" : "  ", field.text);
    }
    return line;
  };
  int min_importance = 0;
  while (min_importance < kAlways && join(min_importance).size() > columns) ++min_importance;
  return join(min_importance);
}

std::string TerminalLine(const StepMetrics& metrics, int64_t total_steps, double seconds_left,
                         size_t columns) {
  constexpr size_t kColumnsForBar = 60;
  constexpr int64_t kBar = 10;
  std::string bar;
  if (columns >= kColumnsForBar) {
    const auto filled = static_cast<size_t>(std::clamp<int64_t>(metrics.step * kBar / total_steps, 0, kBar));
    bar = absl::StrCat("[", std::string(filled, '#'), std::string(kBar - filled, '-'), "]  ");
  }
  std::string line =
      absl::StrCat(bar, ProgressLine(metrics, total_steps, seconds_left, columns - bar.size()));
  line.resize(std::min(line.size(), columns));
  return line;
}

ProgressPrinter::~ProgressPrinter() { EndLine(); }

void ProgressPrinter::EndLine() {
  if (line_open_) {
    std::fputc('\n', stream_);
    std::fflush(stream_);
  }
  line_open_ = false;
}

size_t ProgressPrinter::Columns() const {
  constexpr size_t kUsual = 80;
  winsize size{};
  const bool known = ioctl(fileno(stream_), TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  // A line that fills the last column wraps on some terminals.
  return (known ? size.ws_col : kUsual) - 1;
}

void ProgressPrinter::PrintLine(std::string_view text) {
  EndLine();
  std::fprintf(stream_, "%.*s\n", static_cast<int>(text.size()), text.data());
  std::fflush(stream_);
}

void ProgressPrinter::PrintEvaluation(int64_t step, double loss) {
  PrintLine(absl::StrFormat("eval after step %d  loss %.4f", step, loss));
}

void ProgressPrinter::Print(const StepMetrics& metrics, bool skipped) {
  // A moving average, because the first steps take longer than later ones.
  smoothed_step_ms_ = smoothed_step_ms_ == 0
                          ? metrics.step_ms
                          : (1 - kNewestWeight) * smoothed_step_ms_ + kNewestWeight * metrics.step_ms;
  const double left = smoothed_step_ms_ * static_cast<double>(total_steps_ - metrics.step) / 1e3;
  if (terminal_) {
    // The escape sequence erases the rest of the line, which a longer line may have left.
    std::fprintf(stream_, "\r%s\033[K", TerminalLine(metrics, total_steps_, left, Columns()).c_str());
    line_open_ = true;
  } else {
    std::fprintf(stream_, "%s\n", ProgressLine(metrics, total_steps_, left).c_str());
  }
  if (skipped) {
    PrintLine(absl::StrCat("step ", metrics.step, " skipped: ", LossesAndNorms(metrics),
                           "; no weight was updated"));
  }
  std::fflush(stream_);
  if (metrics.eval_loss) PrintEvaluation(metrics.step, *metrics.eval_loss);
}

}  // namespace weft
