// The cases of layout_cases.txt, which the Python package's suite reads too: C++ and Python must give the
// same values.
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <gtest/gtest.h>

#include "context_parallel/layouts/head_split.h"
#include "context_parallel/layouts/ring_plan.h"
#include "tests/context_parallel/support/masks.h"
#include "weft/context_parallel/byte_formulas.h"
#include "weft/context_parallel/choose_scheme.h"
#include "weft/context_parallel/context_scheme.h"
#include "weft/context_parallel/sequence_layout.h"
#include "weft/core/status.h"

namespace weft::testing {
namespace {

int64_t ParseNumber(const std::string& text) {
  int64_t number = 1;
  EXPECT_TRUE(absl::SimpleAtoi(text, &number)) << "'" << text << "' is no number";
  return number;
}

// Columns of a case, read from left to right.
class Columns {
 public:
  explicit Columns(const std::string& text) : words_(absl::StrSplit(text, ' ', absl::SkipEmpty())) {}

  bool is_at_end() const { return next_ == words_.size(); }
  std::string Word() {
    if (!is_at_end()) return words_[next_++];
    ADD_FAILURE() << "a column is missing";
    return "";
  }
  int64_t Number() { return ParseNumber(Word()); }
  template <typename T>
  T OneOf(const std::map<std::string, T>& values) {
    const std::string word = Word();
    const auto found = values.find(word);
    if (found != values.end()) return found->second;
    ADD_FAILURE() << "'" << word << "' is not a value of its column";
    return values.begin()->second;
  }

 private:
  std::vector<std::string> words_;
  size_t next_ = 0;
};

LoadBalance ReadBalance(Columns& columns) {
  return columns.OneOf<LoadBalance>({{"none", LoadBalance::kNone}, {"head-tail", LoadBalance::kHeadTail}});
}

struct Sequence {
  std::vector<int64_t> documents;
  int ranks = 1;
  LoadBalance balance = LoadBalance::kNone;
};

Sequence ReadSequence(Columns& columns) {
  Sequence sequence;
  for (const absl::string_view length : absl::StrSplit(columns.Word(), ',')) {
    sequence.documents.push_back(ParseNumber(std::string(length)));
  }
  sequence.ranks = static_cast<int>(columns.Number());
  sequence.balance = ReadBalance(columns);
  return sequence;
}

AttentionMask ReadMask(Columns& columns) {
  return columns.OneOf<AttentionMask>({{"causal", kCausal}, {"full", kFull}});
}

AttentionShape ReadShape(Columns& columns) {
  return {
      .batch = columns.Number(),
      .heads = columns.Number(),
      .kv_heads = columns.Number(),
      .head_dim = columns.Number(),
      .value_dim = columns.Number(),
      .dtype = columns.OneOf<DType>({{"f32", DType::kF32}, {"bf16", DType::kBF16}, {"f16", DType::kF16}})};
}

ContextScheme ReadScheme(Columns& columns, LoadBalance balance) {
  return {
      .ulysses_degree = static_cast<int>(columns.Number()),
      .ring_rotation = columns.OneOf<std::optional<RingRotation>>(
          {{"-", std::nullopt}, {"shift", RingRotation::kShift}, {"all-gather", RingRotation::kAllGather}}),
      .balance = balance};
}

SequenceLayout LayoutOf(const Sequence& sequence, const ContextScheme& scheme) {
  auto layout = SequenceLayout::Create(sequence.documents, scheme.Split(sequence.ranks));
  WEFT_CHECK(layout.ok(), "the layout of a case");
  return *std::move(layout);
}

template <typename Range>
std::string RangeText(const Range& range) {
  return absl::StrCat(range.begin, ":", range.end());
}

std::string Layout(Columns& columns) {
  const Sequence sequence = ReadSequence(columns);
  const SequenceLayout layout = LayoutOf(sequence, ContextScheme::Gather(sequence.balance));
  std::vector<std::string> ranks;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    std::vector<std::string> ranges;
    for (const TokenRange& range : layout.RangesOf(rank)) ranges.push_back(RangeText(range));
    ranks.push_back(ranges.empty() ? "-" : absl::StrJoin(ranges, ","));
  }
  return absl::StrJoin(ranks, " ");
}

std::string Heads(Columns& columns) {
  const int64_t heads = columns.Number();
  const int64_t kv_heads = columns.Number();
  const HeadSplit split(heads, kv_heads, static_cast<int>(columns.Number()));
  std::vector<std::string> ranks;
  for (size_t rank = 0; rank < split.queries().size(); ++rank) {
    ranks.push_back(absl::StrCat(RangeText(split.queries()[rank]), "/", RangeText(split.keys()[rank])));
  }
  return absl::StrJoin(ranks, " ");
}

std::string Ring(Columns& columns) {
  const Sequence sequence = ReadSequence(columns);
  const SequenceLayout layout = LayoutOf(sequence, ContextScheme::Gather(sequence.balance));
  const RingPlan plan(ReadMask(columns), layout.Parts(0)->parts);
  std::string text = absl::StrCat(plan.hops());
  for (int owner = 0; owner < sequence.ranks; ++owner) {
    text += ' ';
    for (int distance = 1; distance < sequence.ranks; ++distance) {
      const char of_block = plan.PassesGradientsOn(owner, distance)  ? 'p'
                            : plan.ReturnsGradients(owner, distance) ? 'r'
                                                                     : 'b';
      text += plan.Reaches(owner, distance) ? of_block : '.';
    }
  }
  return text;
}

std::string Scheme(Columns& columns) {
  const auto ranks = static_cast<int>(columns.Number());
  const LoadBalance balance = ReadBalance(columns);
  return ReadScheme(columns, balance).Describe(ranks);
}

std::string Costs(Columns& columns) {
  const Sequence sequence = ReadSequence(columns);
  const ContextScheme scheme = ReadScheme(columns, sequence.balance);
  const AttentionMask mask = ReadMask(columns);
  const AttentionShape shape = ReadShape(columns);
  const ContextCosts costs =
      CostsOf(scheme, shape, mask, LayoutOf(sequence, scheme), static_cast<int>(columns.Number()));
  return absl::StrJoin({costs.forward_bytes, costs.backward_bytes, int64_t{costs.forward_hops},
                        int64_t{costs.backward_hops}, costs.pairs},
                       " ");
}

std::string Imbalance(Columns& columns) {
  const Sequence sequence = ReadSequence(columns);
  const ContextScheme scheme = ReadScheme(columns, sequence.balance);
  const AttentionMask mask = ReadMask(columns);
  return absl::StrFormat("%.6f", WorkImbalance(scheme, ReadShape(columns), mask, LayoutOf(sequence, scheme)));
}

std::string Choice(Columns& columns) {
  const Sequence sequence = ReadSequence(columns);
  const AttentionMask mask = ReadMask(columns);
  const AttentionShape shape = ReadShape(columns);
  std::vector<ContextScheme> schemes;
  while (!columns.is_at_end()) schemes.push_back(ReadScheme(columns, sequence.balance));
  const auto choice = ChooseAmong(schemes, shape, mask, sequence.documents, sequence.ranks);
  return choice.ok() ? choice->scheme.Describe(sequence.ranks) : choice.status().ToString();
}

TEST(LayoutCases, HaveTheValuesOfTheFileThatThePythonSuiteReads) {
  using Compute = std::string (*)(Columns&);
  const std::map<std::string, Compute> tables = {
      {"layout", Layout}, {"heads", Heads},         {"ring", Ring},    {"scheme", Scheme},
      {"costs", Costs},   {"imbalance", Imbalance}, {"choice", Choice}};
  std::set<std::string> found;
  std::ifstream file(WEFT_LAYOUT_CASES);
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.front() == '#') continue;
    SCOPED_TRACE(line);
    const std::pair<std::string, std::string> sides = absl::StrSplit(line, absl::MaxSplits(" = ", 1));
    Columns columns(sides.first);
    const std::string table = columns.Word();
    found.insert(table);
    ASSERT_TRUE(tables.contains(table)) << "no table has this name";
    EXPECT_EQ(tables.at(table)(columns), sides.second);
    EXPECT_TRUE(columns.is_at_end()) << "the case has more inputs than its table";
  }
  EXPECT_EQ(found.size(), tables.size()) << "a table has no case";
}

}  // namespace
}  // namespace weft::testing
