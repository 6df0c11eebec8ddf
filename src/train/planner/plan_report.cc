#include "src/train/planner/plan_report.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_split.h>

#include "weft/core/size_text.h"

namespace weft {
namespace {

constexpr size_t kColumns = 80;

std::string Milliseconds(double ms) { return absl::StrFormat("%.*f ms", ms < 100 ? 1 : 0, ms); }

std::string Rate(double tokens_per_s) {
  return tokens_per_s < 1e4 ? absl::StrFormat("%.0f", tokens_per_s)
                            : absl::StrFormat("%.1fk", tokens_per_s / 1e3);
}

// "label     text", broken at spaces into lines of at most kColumns.
std::string Wrapped(std::string_view label, std::string_view text) {
  constexpr size_t kIndent = 12;
  std::string lines;
  std::string line(label);
  line.resize(std::max(kIndent, line.size() + 1), ' ');
  bool empty = true;
  for (const absl::string_view word : absl::StrSplit(absl::string_view(text.data(), text.size()), ' ')) {
    if (!empty && line.size() + 1 + word.size() > kColumns) {
      absl::StrAppend(&lines, line, "\n");
      line.assign(kIndent, ' ');
      empty = true;
    }
    absl::StrAppend(&line, empty ? "" : " ", word);
    empty = false;
  }
  return absl::StrCat(lines, line, "\n");
}

std::string Table(const std::vector<Candidate>& candidates) {
  std::string text = absl::StrFormat("%-13s %-8s %10s %9s %10s %11s %11s\n", "mesh", "", "step", "tokens/s",
                                     "exposed", "memory", "host sends");
  for (const Candidate& candidate : candidates) {
    if (!candidate.step) continue;
    absl::StrAppend(
        &text, absl::StrFormat("%-13s %-8s %10s %9s %10s %11s %11s\n", candidate.mesh.Name(),
                               candidate.fits() ? candidate.mesh.Kind() : "no fit",
                               Milliseconds(candidate.step->step_ms), Rate(candidate.tokens_per_s()),
                               Milliseconds(candidate.step->exposed_ms), SizeText(candidate.memory.total()),
                               SizeText(candidate.step->wire_bytes)));
  }
  return text;
}

std::string Details(const Candidate& candidate) {
  const ReplayResult& step = *candidate.step;
  const MemoryForecast& memory = candidate.memory;
  const char* about = step.divisor == 1 ? "" : "about ";
  std::string text = absl::StrCat("\n", candidate.mesh.Name(), " in detail, of one rank:\n");
  absl::StrAppend(
      &text,
      Wrapped("memory",
              absl::StrCat(about, SizeText(memory.total()), ": ", SizeText(memory.weights), " weights, ",
                           SizeText(memory.gradients), " gradients, ", SizeText(memory.moments), " moments, ",
                           SizeText(memory.images), " gathered weights, ", SizeText(memory.full_gradients),
                           " full gradients, ", SizeText(memory.activations), " activations, ",
                           SizeText(memory.context + memory.scratch), " scratch, ", SizeText(memory.program),
                           " program, ", SizeText(memory.idle), " idle; resident with pages of peers ",
                           SizeText(memory.resident()), "; at most ", SizeText(memory.at_most))));
  absl::StrAppend(
      &text, Wrapped("time", absl::StrCat(Milliseconds(step.step_ms), " a step: ",
                                          Milliseconds(step.compute_ms), " of computation on free cores, ",
                                          Milliseconds(step.exposed_ms), " of exposed communication")));
  absl::StrAppend(&text,
                  Wrapped("receives", absl::StrCat(SizeText(step.all_gather_bytes), " all-gather, ",
                                                   SizeText(step.reduce_scatter_bytes), " reduce-scatter, ",
                                                   SizeText(step.all_reduce_bytes), " all-reduce, ",
                                                   SizeText(step.context_bytes), " attention",
                                                   step.optimizer_bytes == 0
                                                       ? ""
                                                       : absl::StrCat(", ", SizeText(step.optimizer_bytes),
                                                                      " matrices of Muon"))));
  return text;
}

}  // namespace

std::string MeshSize::Name() const {
  return absl::StrCat(replicate, " x ", shard, context > 1 ? absl::StrCat(" x ", context) : "");
}

std::string MeshSize::Kind() const {
  const int64_t shards = shard * context;
  if (ranks() == 1) return "one rank";
  if (shards == 1) return "DDP";
  return replicate == 1 ? "FSDP" : "HSDP";
}

std::string MeshSize::Flags() const {
  return absl::StrCat("--dp-replicate ", replicate, " --dp-shard ", shard,
                      context > 1 ? absl::StrCat(" --cp ", context) : "");
}

std::vector<MeshSize> AllMeshes(int64_t ranks, int64_t context) {
  std::vector<MeshSize> meshes;
  const int64_t rest = ranks / context;
  for (int64_t replicate = 1; replicate <= rest; ++replicate) {
    if (rest % replicate == 0) meshes.push_back({replicate, rest / replicate, context});
  }
  return meshes;
}

void Rank(std::vector<Candidate>& candidates) {
  std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    if (a.fits() != b.fits()) return a.fits();
    if (a.step.has_value() != b.step.has_value()) return a.step.has_value();
    if (!a.step) return false;
    if (a.tokens_per_s() != b.tokens_per_s()) return a.tokens_per_s() > b.tokens_per_s();
    return a.memory.total() < b.memory.total();
  });
}

std::string FormatText(const PlanReport& report) {
  std::string text = absl::StrCat(Wrapped("model", report.model), Wrapped("batch", report.batch),
                                  Wrapped("machine", report.machine), Wrapped("costs", report.costs), "\n");
  absl::StrAppend(&text, Table(report.candidates));
  for (const Candidate& candidate : report.candidates) {
    if (candidate.fits()) continue;
    absl::StrAppend(&text, Wrapped(candidate.mesh.Name(), candidate.error));
  }
  if (!report.candidates.empty() && report.candidates.front().step) {
    absl::StrAppend(&text, Details(report.candidates.front()));
  }
  absl::StrAppend(&text, "\n");
  for (size_t i = 0; i < report.assumptions.size(); ++i) {
    absl::StrAppend(&text, Wrapped(i == 0 ? "assumes" : "", report.assumptions[i]));
  }
  absl::StrAppend(
      &text, "\n",
      report.command.empty() ? "No mesh fits.\n" : absl::StrCat("run:\n  ", report.command, "\n"));
  return text;
}

}  // namespace weft
