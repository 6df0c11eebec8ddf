// Spans of computation: named intervals of a thread's time, such as a module's forward or a matrix product.
//
//   SpanRecorder recorder([&] { return runtime.NowNs(); });
//   {
//     const ScopedSpanRecorder installed(&recorder);
//     model.Forward(…);  // Modules and products record themselves.
//   }
//   std::vector<SpanRecord> spans = recorder.Take();
//
// A thread records spans only while a recorder is installed on it. Otherwise a Span costs one load.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <absl/functional/function_ref.h>

namespace weft {

struct SpanRecord {
  const char* category;  // Lifetime: the program's.
  std::string name;
  int64_t begin_ns, end_ns;
};

// Spans in the order of their ends, so an inner span comes before the outer one. Thread safety: none.
class SpanRecorder {
 public:
  // `now_ns` is the clock of the spans.
  explicit SpanRecorder(std::function<int64_t()> now_ns) : now_ns_(std::move(now_ns)) {}

  int64_t NowNs() const { return now_ns_(); }
  void Add(SpanRecord span) { spans_.push_back(std::move(span)); }
  // Removes and returns the spans that have ended.
  std::vector<SpanRecord> Take() { return std::exchange(spans_, {}); }

 private:
  std::function<int64_t()> now_ns_;
  std::vector<SpanRecord> spans_;
};

// Installs a recorder on the calling thread, until its destructor installs the previous one again. Null:
// spans are not recorded.
class ScopedSpanRecorder {
 public:
  explicit ScopedSpanRecorder(SpanRecorder* recorder);
  ~ScopedSpanRecorder();
  ScopedSpanRecorder(const ScopedSpanRecorder&) = delete;
  ScopedSpanRecorder& operator=(const ScopedSpanRecorder&) = delete;

 private:
  SpanRecorder* previous_;
};

// A span from its construction to its destruction, on one thread.
class [[nodiscard]] Span {
 public:
  // `name` is called at once, and only if the span is recorded.
  Span(const char* category, absl::FunctionRef<std::string()> name);
  ~Span();
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  SpanRecorder* recorder_;  // Null: the span is not recorded.
  const char* category_;
  std::string name_;
  int64_t begin_ns_ = 0;
};

}  // namespace weft
