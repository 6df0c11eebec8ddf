// Line charts as inline SVG, whose colors are those of the page's style sheet.
//
// Pure. Thread safety: any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft {

struct ChartPoint {
  double x, y;
};

struct ChartLine {
  std::string label;
  int color = 0;                   // Number of the run, which has a color in the style sheet.
  bool is_dashed = false;          // For a second quantity of the same run.
  bool has_dots = false;           // Draws a dot at each point, for few points.
  std::vector<ChartPoint> points;  // By ascending x; values that are not finite interrupt the line.
};

struct Chart {
  std::string title;
  std::string unit;     // Of y.
  bool is_log = false;  // Logarithmic y, if all values are positive.
  std::vector<ChartLine> lines = {};
};

// The chart as a figure with its title, its legend and an SVG, which states the range of each line for screen
// readers. Long lines are reduced to the extremes of each of some hundred intervals of x. Empty without a
// point that is finite.
std::string FigureOf(const Chart& chart);

// The text with the characters that HTML reserves replaced, and control characters left out.
std::string Escaped(std::string_view text);

// A number in about four digits: "0.0123", "12.3k".
std::string ShortNumber(double value);

// Values in [low, high] at which an axis has marks: multiples of 1, 2 or 5 times a power of ten, or for a
// logarithmic axis also these numbers themselves. REQUIRES: low < high; positive if logarithmic.
std::vector<double> AxisMarks(double low, double high, bool is_log);

// At most 2 `intervals` points that show the same extremes. REQUIRES: ascending x.
std::vector<ChartPoint> Reduced(const std::vector<ChartPoint>& points, size_t intervals);

}  // namespace weft
