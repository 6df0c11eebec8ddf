#include "weft/train/progress.h"

#include <algorithm>
#include <cmath>

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

std::string ProgressLine(const StepMetrics& metrics, int64_t total_steps, double seconds_left) {
  return absl::StrFormat(
      "step %d/%d  loss %.4f  norm %.3f  %s tokens/s  %.3f TFLOP/s  %.0f ms  comm %.0f ms  %d MiB  ETA %s",
      metrics.step, total_steps, metrics.loss, metrics.grad_norm, Short(metrics.tokens_per_s), metrics.tflops,
      metrics.step_ms, metrics.exposed_comm_ms, metrics.rss_bytes >> 20, Duration(seconds_left));
}

ProgressPrinter::~ProgressPrinter() { EndLine(); }

void ProgressPrinter::EndLine() {
  if (line_open_) {
    std::fputc('\n', stream_);
    std::fflush(stream_);
  }
  line_open_ = false;
  shown_ = 0;
}

void ProgressPrinter::Print(const StepMetrics& metrics) {
  // A moving average, because the first steps take longer than later ones.
  smoothed_step_ms_ = smoothed_step_ms_ == 0
                          ? metrics.step_ms
                          : (1 - kNewestWeight) * smoothed_step_ms_ + kNewestWeight * metrics.step_ms;
  const double left = smoothed_step_ms_ * static_cast<double>(total_steps_ - metrics.step) / 1e3;
  const std::string line = ProgressLine(metrics, total_steps_, left);
  if (terminal_) {
    const std::string blank(shown_ > line.size() ? shown_ - line.size() : 0, ' ');
    std::fprintf(stream_, "\r%s%s", line.c_str(), blank.c_str());
    line_open_ = true;
    shown_ = line.size();
  } else {
    std::fprintf(stream_, "%s\n", line.c_str());
  }
  if (metrics.eval_loss) {
    EndLine();
    std::fprintf(stream_, "eval after step %lld  loss %.4f\n", static_cast<long long>(metrics.step),
                 *metrics.eval_loss);
  }
  std::fflush(stream_);
}

}  // namespace weft
