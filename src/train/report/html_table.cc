#include "src/train/report/html_table.h"

#include <absl/strings/str_format.h>

#include "src/train/report/svg_chart.h"

namespace weft {
namespace {

void AddRow(const std::vector<std::string>& cells, const char* cell, const char* scope, std::string& html) {
  for (size_t i = 0; i < cells.size(); ++i) {
    const std::string tag = i == 0 ? "th" : cell;
    absl::StrAppendFormat(&html, "<%s%s>%s</%s>", tag, tag == "th" ? scope : "", cells[i], tag);
  }
}

}  // namespace

std::string ToHtml(const Table& table) {
  std::string html = absl::StrFormat(
      "<div class=\"scroll\" tabindex=\"0\" role=\"region\" "
      "aria-label=\"%s\">\n<table%s>\n<caption>%s</caption>\n"
      "<thead><tr>",
      Escaped(table.caption), table.is_text ? " class=\"text\"" : "", Escaped(table.caption));
  AddRow(table.head, "th", " scope=\"col\"", html);
  html += "</tr></thead>\n<tbody>\n";
  for (size_t i = 0; i < table.rows.size(); ++i) {
    html += table.differing.count(i) == 0 ? "<tr>" : "<tr class=\"differs\">";
    AddRow(table.rows[i], "td", " scope=\"row\"", html);
    html += "</tr>\n";
  }
  return html + "</tbody>\n</table>\n</div>\n";
}

}  // namespace weft
