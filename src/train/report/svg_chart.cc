#include "src/train/report/svg_chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include "weft/core/control_characters.h"

namespace weft {
namespace {

// The drawing in its own units. At a width of 400 pixels a unit is most of a pixel, so that the text stays
// legible.
constexpr double kWidth = 480, kHeight = 264;
constexpr double kLeft = 66, kRight = 460, kTop = 10, kBottom = 226;
constexpr size_t kIntervals = 300;
constexpr int kIntervalsOfAxis = 5;
constexpr double kLeastRange = 1e-9;  // A smaller part of the values is a difference of rounding.

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void Include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
  // One value alone has no scale.
  void Widen() {
    if (high - low > kLeastRange * std::max(std::abs(low), std::abs(high))) return;
    const double margin = low == 0 ? 1 : std::abs(low) * 0.1;
    low -= margin;
    high += margin;
  }
};

bool IsFinite(const ChartPoint& point) { return std::isfinite(point.x) && std::isfinite(point.y); }

// Maps values to the drawing.
struct Scale {
  Range x, y;
  bool is_log;

  double X(double value) const { return kLeft + (value - x.low) / (x.high - x.low) * (kRight - kLeft); }
  double Y(double value) const {
    const double part =
        is_log ? std::log(value / y.low) / std::log(y.high / y.low) : (value - y.low) / (y.high - y.low);
    return kBottom - part * (kBottom - kTop);
  }
};

void AddMarks(const Scale& scale, std::string& svg) {
  for (const double value : AxisMarks(scale.y.low, scale.y.high, scale.is_log)) {
    absl::StrAppendFormat(&svg,
                          "<line class=\"grid\" x1=\"%.0f\" x2=\"%.0f\" y1=\"%.1f\" y2=\"%.1f\"/>"
                          "<text x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                          kLeft, kRight, scale.Y(value), scale.Y(value), kLeft - 6, scale.Y(value) + 4,
                          ShortNumber(value));
  }
  for (const double value : AxisMarks(scale.x.low, scale.x.high, /*is_log=*/false)) {
    if (value != std::floor(value)) continue;  // Steps are whole.
    absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\">%s</text>\n",
                          scale.X(value), kBottom + 18, ShortNumber(value));
  }
  absl::StrAppendFormat(&svg, "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"end\">step</text>\n", kRight,
                        kHeight - 6);
}

void AddLine(const ChartLine& line, const Scale& scale, std::string& svg) {
  std::string path;
  bool is_drawing = false;
  for (const ChartPoint& point : Reduced(line.points, kIntervals)) {
    if (!IsFinite(point)) {
      is_drawing = false;
      continue;
    }
    absl::StrAppendFormat(&path, "%s%.1f %.1f", is_drawing ? "L" : "M", scale.X(point.x), scale.Y(point.y));
    is_drawing = true;
    if (line.has_dots) {
      absl::StrAppendFormat(&svg, "<circle class=\"run%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>\n", line.color,
                            scale.X(point.x), scale.Y(point.y));
    }
  }
  absl::StrAppendFormat(&svg, "<path class=\"line run%d%s\" d=\"%s\"/>\n", line.color,
                        line.is_dashed ? " dashed" : "", path);
}

// "loss: 5.62 at step 1, 3.18 at step 40, between 3.15 and 5.62".
std::string DescriptionOf(const ChartLine& line) {
  Range range;
  const ChartPoint* first = nullptr;
  const ChartPoint* last = nullptr;
  for (const ChartPoint& point : line.points) {
    if (!IsFinite(point)) continue;
    range.Include(point.y);
    first = first == nullptr ? &point : first;
    last = &point;
  }
  if (first == nullptr) return absl::StrCat(line.label, ": no value");
  return absl::StrCat(line.label, ": ", ShortNumber(first->y), " at step ", ShortNumber(first->x), ", ",
                      ShortNumber(last->y), " at step ", ShortNumber(last->x), ", between ",
                      ShortNumber(range.low), " and ", ShortNumber(range.high));
}

std::string LegendOf(const Chart& chart) {
  std::string legend = "<ul class=\"legend\">";
  for (const ChartLine& line : chart.lines) {
    absl::StrAppendFormat(
        &legend,
        "<li><svg class=\"key\" viewBox=\"0 0 24 8\" aria-hidden=\"true\">"
        "<path class=\"line run%d%s\" d=\"M0 4L24 4\"/>%s</svg> %s</li>",
        line.color, line.is_dashed ? " dashed" : "",
        line.has_dots ? absl::StrFormat("<circle class=\"run%d\" cx=\"12\" cy=\"4\" r=\"3\"/>", line.color)
                      : "",
        Escaped(line.label));
  }
  return absl::StrCat(legend, "</ul>");
}

}  // namespace

std::string FigureOf(const Chart& chart) {
  Scale scale{{}, {}, chart.is_log};
  for (const ChartLine& line : chart.lines) {
    for (const ChartPoint& point : line.points) {
      if (!IsFinite(point)) continue;
      scale.x.Include(point.x);
      scale.y.Include(point.y);
      scale.is_log &= point.y > 0;
    }
  }
  if (scale.x.empty()) return "";
  scale.x.Widen();
  scale.y.Widen();
  std::string description;
  std::string drawing;
  AddMarks(scale, drawing);
  for (const ChartLine& line : chart.lines) {
    AddLine(line, scale, drawing);
    absl::StrAppend(&description, description.empty() ? "" : "; ", DescriptionOf(line));
  }
  const std::string title = absl::StrCat(chart.title, chart.unit.empty() ? "" : ", ", chart.unit,
                                         scale.is_log ? " (logarithmic)" : "");
  return absl::StrFormat(
      "<figure>\n<figcaption>%s</figcaption>\n%s\n"
      "<svg class=\"chart\" viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"%s. "
      "%s\">\n%s</svg>\n</figure>\n",
      Escaped(title), LegendOf(chart), kWidth, kHeight, Escaped(title), Escaped(description), drawing);
}

std::string Escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        if (!IsControlCharacter(c)) escaped += c;
    }
  }
  return escaped;
}

std::string ShortNumber(double value) {
  if (!std::isfinite(value)) return "none";
  struct Prefix {
    double factor;
    const char* name;
  };
  constexpr std::array<Prefix, 4> kPrefixes = {{{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}}};
  for (const Prefix& prefix : kPrefixes) {
    if (std::abs(value) >= 10 * prefix.factor || (std::abs(value) >= prefix.factor && prefix.factor > 1e3)) {
      return absl::StrFormat("%.4g%s", value / prefix.factor, prefix.name);
    }
  }
  return absl::StrFormat("%.4g", value);
}

std::vector<double> AxisMarks(double low, double high, bool is_log) {
  std::vector<double> marks;
  if (is_log && high / low >= 3) {
    // All of 1, 2 and 5 in up to two decades, else powers of ten alone.
    const bool dense = high / low < 200;
    const auto last = static_cast<int>(std::floor(std::log10(high)));
    for (auto decade = static_cast<int>(std::floor(std::log10(low))); decade <= last; ++decade) {
      for (const double factor : {1.0, 2.0, 5.0}) {
        const double mark = std::pow(10, decade) * factor;
        if (mark >= low && mark <= high && (dense || factor == 1.0)) marks.push_back(mark);
      }
    }
    if (!marks.empty()) return marks;
  }
  const double rough = (high - low) / kIntervalsOfAxis;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double part = rough / power;
  const double distance = power * (part <= 1 ? 1 : part <= 2 ? 2 : part <= 5 ? 5 : 10);
  // Counts by an integer: a double of more than 2^53 does not grow by one.
  for (int i = 0; i <= kIntervalsOfAxis; ++i) {
    const double mark = (std::ceil(low / distance) + i) * distance;
    if (mark <= high) marks.push_back(mark);
  }
  return marks;
}

std::vector<ChartPoint> Reduced(const std::vector<ChartPoint>& points, size_t intervals) {
  if (points.size() <= 2 * intervals) return points;
  std::vector<ChartPoint> reduced;
  for (size_t i = 0; i < intervals; ++i) {
    const auto begin = points.begin() + static_cast<std::ptrdiff_t>(points.size() * i / intervals);
    const auto end = points.begin() + static_cast<std::ptrdiff_t>(points.size() * (i + 1) / intervals);
    auto low = end;
    auto high = end;
    for (auto point = begin; point != end; ++point) {
      if (!IsFinite(*point)) continue;
      if (low == end || point->y < low->y) low = point;
      if (high == end || point->y > high->y) high = point;
    }
    if (low == end) {
      reduced.push_back(*begin);  // Interrupts the line.
      continue;
    }
    reduced.push_back(*std::min(low, high));
    if (low != high) reduced.push_back(*std::max(low, high));
  }
  return reduced;
}

}  // namespace weft
