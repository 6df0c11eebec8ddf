#include "src/train/report/formula_tables.h"

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include "src/train/report/html_table.h"
#include "src/train/report/svg_chart.h"
#include "weft/core/median.h"

namespace weft {
namespace {

struct Collective {
  const char* key;
  const char* name;
  int64_t StepCosts::*bytes;
};

constexpr Collective kCollectives[] = {
    {"bytes.all_gather", "all-gathered: weights", &StepCosts::all_gather_bytes},
    {"bytes.reduce_scatter", "reduce-scattered: gradients", &StepCosts::reduce_scatter_bytes},
    {"bytes.all_reduce", "all-reduced: gradients of replicas", &StepCosts::all_reduce_bytes},
};

std::string MiB(double bytes) { return ShortNumber(bytes / kMiB); }

// The values of `key` from the step with index `first` on.
std::vector<double> ValuesFrom(const RunMetrics& run, const char* key, size_t first) {
  std::vector<double> finite;
  const auto found = run.values.find(key);
  if (found == run.values.end()) return finite;
  for (size_t i = first; i < found->second.size(); ++i) {
    if (std::isfinite(found->second[i])) finite.push_back(found->second[i]);
  }
  return finite;
}

std::string MedianFrom(const RunMetrics& run, const char* key, size_t first) {
  const std::vector<double> values = ValuesFrom(run, key, first);
  return values.empty() ? kNone : MiB(Median(values));
}

// Comparison of a collective's bytes with the formulas of the process that ran each step.
struct Comparison {
  int64_t steps = 0;  // With values and formulas.
  int64_t differing = 0;
  std::string first;  // The first of them.

  std::string ToText() const {
    if (steps == 0) return kNone;
    if (differing == 0) return "equal in all steps";
    return absl::StrCat("differs in ", differing, " of ", steps, " steps, first in ", first);
  }
};

// The costs of the step with index `i`.
const StepCosts& CostsAt(const RunMetrics& run, const RunMetrics::Formulas& formulas, size_t i) {
  if (i == formulas.first) return formulas.costs.first_step;
  const auto evaluations = run.values.find("eval_loss");
  const bool follows_one = evaluations != run.values.end() && std::isfinite(evaluations->second[i - 1]);
  return follows_one ? formulas.costs.after_evaluation : formulas.costs.step;
}

Comparison Compare(const RunMetrics& run, const Collective& collective) {
  Comparison comparison;
  const auto values = run.values.find(collective.key);
  if (values == run.values.end()) return comparison;
  for (size_t part = 0; part < run.formulas.size(); ++part) {
    const RunMetrics::Formulas& formulas = run.formulas[part];
    const size_t end = part + 1 < run.formulas.size() ? run.formulas[part + 1].first : run.steps.size();
    for (size_t i = formulas.first; i < end; ++i) {
      const double measured = values->second[i];
      if (!std::isfinite(measured)) continue;
      const auto expected = static_cast<double>(CostsAt(run, formulas, i).*collective.bytes);
      ++comparison.steps;
      if (measured == expected) continue;
      if (++comparison.differing > 1) continue;
      comparison.first = absl::StrFormat("step %.0f: %.0f bytes, not %.0f", run.steps[i], measured, expected);
    }
  }
  return comparison;
}

// The formulas give the bytes of all ranks together, and rank 0's include those of norms and losses.
std::vector<std::string> WireRow(const RunMetrics& run, const RunMetrics::Formulas& last) {
  std::vector<double> sent = ValuesFrom(run, "wire_bytes", last.first);
  const std::vector<double> saved = ValuesFrom(run, "wire_saved_bytes", last.first);
  for (size_t i = 0; i < sent.size() && sent.size() == saved.size(); ++i) sent[i] += saved[i];
  const StepShape& shape = last.inputs.shape;
  const double mean = static_cast<double>(last.costs.step.wire_bytes) / shape.ranks();
  return {"sent to other nodes, before compression", sent.empty() ? kNone : MiB(Median(sent)),
          last.inputs.has_even_nodes ? MiB(mean) : kNone,
          last.inputs.has_even_nodes ? "formula: mean of all ranks, not compared"
                                     : "no formula: nodes have different numbers of ranks"};
}

}  // namespace

std::string FormulasOf(const RunMetrics& run) {
  if (run.formulas.empty()) {
    return absl::StrCat(
        "<p>", Escaped(run.name),
        ": the inputs of the formulas are missing. An earlier version of weft train wrote these "
        "metrics.</p>\n");
  }
  const RunMetrics::Formulas& last = run.formulas.back();
  Table table{.caption = absl::StrFormat(
                  "%s: bytes that a step brings to rank 0, in MiB, median from step %.0f on. Rows "
                  "in which a step differs are marked with *.",
                  run.name, run.steps[last.first]),
              .head = {"collective", "metrics", "formula", "comparison"}};
  for (const Collective& collective : kCollectives) {
    const Comparison comparison = Compare(run, collective);
    if (comparison.differing > 0) table.differing.insert(table.rows.size());
    table.rows.push_back({absl::StrCat(collective.name, comparison.differing > 0 ? " *" : ""),
                          MedianFrom(run, collective.key, last.first),
                          MiB(static_cast<double>(last.costs.step.*collective.bytes)), comparison.ToText()});
  }
  if (last.inputs.shape.ranks_per_node > 0 || !last.inputs.has_even_nodes) {
    table.rows.push_back(WireRow(run, last));
  }
  return ToHtml(table);
}

}  // namespace weft
