#include "weft/core/spans.h"

#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;

auto IsSpan(const std::string& name, int64_t begin_ns, int64_t end_ns) {
  return AllOf(Field(&SpanRecord::name, name), Field(&SpanRecord::begin_ns, begin_ns),
               Field(&SpanRecord::end_ns, end_ns));
}

class Spans : public ::testing::Test {
 protected:
  int64_t now_ns_ = 0;
  SpanRecorder recorder_{[this] { return ++now_ns_; }};
};

TEST_F(Spans, AreRecordedInTheOrderOfTheirEnds) {
  const ScopedSpanRecorder installed(&recorder_);
  {
    const Span outer("forward", [] { return std::string("block"); });
    const Span inner("forward", [] { return std::string("mlp"); });
  }
  EXPECT_THAT(recorder_.Take(), ElementsAre(IsSpan("mlp", 2, 3), IsSpan("block", 1, 4)));
  EXPECT_THAT(recorder_.Take(), IsEmpty());
}

TEST_F(Spans, AreNotNamedWithoutARecorder) {
  bool named = false;
  {
    const Span span("forward", [&] {
      named = true;
      return std::string();
    });
  }
  EXPECT_FALSE(named);
}

TEST_F(Spans, OfOtherThreadsAreNotRecorded) {
  const ScopedSpanRecorder installed(&recorder_);
  std::thread([] { const Span span("forward", [] { return std::string("elsewhere"); }); }).join();
  EXPECT_THAT(recorder_.Take(), IsEmpty());
}

TEST_F(Spans, GoToThePreviousRecorderAfterTheScope) {
  SpanRecorder inner([] { return int64_t{0}; });
  const ScopedSpanRecorder installed(&recorder_);
  {
    const ScopedSpanRecorder other(&inner);
    const Span span("forward", [] { return std::string("a"); });
  }
  {
    const Span span("forward", [] { return std::string("b"); });
  }
  EXPECT_THAT(inner.Take(), ElementsAre(IsSpan("a", 0, 0)));
  EXPECT_THAT(recorder_.Take(), ElementsAre(IsSpan("b", 1, 2)));
}

TEST_F(Spans, EndWithTheRecorderThatTheyBeganWith) {
  const ScopedSpanRecorder installed(&recorder_);
  {
    const Span span("forward", [] { return std::string("a"); });
    const ScopedSpanRecorder none(nullptr);
  }
  EXPECT_THAT(recorder_.Take(), ElementsAre(IsSpan("a", 1, 2)));
}

}  // namespace
}  // namespace weft
