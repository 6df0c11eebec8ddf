// Charts of stacked horizontal bars as inline SVG, whose colors are those of the page's style sheet.
//
// Pure. Thread safety: any thread.
#pragma once

#include <string>
#include <vector>

namespace weft {

struct BarPart {
  int kind;       // Index in BarChart::kinds, which is also the color's number.
  double length;  // In the chart's unit; not negative.
};

// Bars below each other, each of parts one after the other.
struct BarRow {
  std::string label;
  std::vector<std::vector<BarPart>> bars;
};

struct BarChart {
  std::string title;
  std::string unit;
  std::vector<std::string> kinds;
  std::vector<BarRow> rows;
};

// The chart as a figure with its title, a legend of the kinds and an SVG, which states the lengths of each
// row for screen readers. Long labels lose their beginning. Empty if all bars are.
std::string FigureOf(const BarChart& chart);

}  // namespace weft
