#include "src/train/report/bar_chart.h"

#include <algorithm>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include "src/train/report/svg_chart.h"
#include "src/train/report/trace_summary.h"

namespace weft {
namespace {

// The drawing in its own units, as those of line charts.
constexpr double kWidth = 480, kLeft = 150, kRight = 460;
constexpr double kBarHeight = 8, kRowGap = 8, kAxisHeight = 24;
constexpr size_t kLabelColumns = 20;

double LengthOf(const std::vector<BarPart>& bar) {
  double length = 0;
  for (const BarPart& part : bar) length += part.length;
  return length;
}

double HeightOf(const BarRow& row) { return static_cast<double>(row.bars.size()) * kBarHeight + kRowGap; }

void AddMarks(double longest, double bottom, std::string& svg) {
  for (const double value : AxisMarks(0, longest, /*is_log=*/false)) {
    const double x = kLeft + value / longest * (kRight - kLeft);
    absl::StrAppendFormat(&svg,
                          "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"0\" y2=\"%.0f\"/>"
                          "<text x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\">%s</text>\n",
                          x, x, bottom, x, bottom + 18, ShortNumber(value));
  }
}

void AddRow(const BarRow& row, double longest, double top, std::string& svg) {
  absl::StrAppendFormat(&svg, "<text x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", kLeft - 6,
                        top + HeightOf(row) / 2, Escaped(ShortenedName(row.label, kLabelColumns)));
  double y = top + kRowGap / 2;
  for (const std::vector<BarPart>& bar : row.bars) {
    double x = kLeft;
    for (const BarPart& part : bar) {
      const double width = part.length / longest * (kRight - kLeft);
      if (width > 0) {
        absl::StrAppendFormat(&svg,
                              "<rect class=\"run%d\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\"/>",
                              part.kind, x, y, width, kBarHeight - 1);
      }
      x += width;
    }
    y += kBarHeight;
  }
  svg += "\n";
}

// "model.layers.0: gather 0.5, forward 1.2".
std::string DescriptionOf(const BarRow& row, const std::vector<std::string>& kinds) {
  std::string description;
  for (const std::vector<BarPart>& bar : row.bars) {
    for (const BarPart& part : bar) {
      absl::StrAppend(&description, description.empty() ? "" : ", ", kinds[static_cast<size_t>(part.kind)],
                      " ", ShortNumber(part.length));
    }
  }
  return absl::StrCat(row.label, ": ", description);
}

std::string LegendOf(const std::vector<std::string>& kinds) {
  std::string legend = "<ul class=\"legend\">";
  for (size_t i = 0; i < kinds.size(); ++i) {
    absl::StrAppendFormat(&legend,
                          "<li><svg class=\"key\" viewBox=\"0 0 24 8\" aria-hidden=\"true\">"
                          "<rect class=\"run%d\" width=\"24\" height=\"8\"/></svg> %s</li>",
                          i, Escaped(kinds[i]));
  }
  return absl::StrCat(legend, "</ul>");
}

}  // namespace

std::string FigureOf(const BarChart& chart) {
  double longest = 0;
  for (const BarRow& row : chart.rows) {
    for (const std::vector<BarPart>& bar : row.bars) longest = std::max(longest, LengthOf(bar));
  }
  if (longest <= 0) return "";
  std::string rows;
  std::string description;
  double bottom = 0;
  for (const BarRow& row : chart.rows) {
    AddRow(row, longest, bottom, rows);
    bottom += HeightOf(row);
    absl::StrAppend(&description, description.empty() ? "" : "; ", DescriptionOf(row, chart.kinds));
  }
  std::string marks;
  AddMarks(longest, bottom, marks);
  const std::string title = absl::StrCat(chart.title, ", ", chart.unit);
  return absl::StrFormat(
      "<figure>\n<figcaption>%s</figcaption>\n%s\n"
      "<svg class=\"chart\" viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"%s. "
      "%s\">\n%s%s</svg>\n</figure>\n",
      Escaped(title), LegendOf(chart.kinds), kWidth, bottom + kAxisHeight, Escaped(title),
      Escaped(description), marks, rows);
}

}  // namespace weft
