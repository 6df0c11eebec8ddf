// Error handling of benchmarks: an error is printed and ends the process with exit code 1.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <utility>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

namespace weft::bench {

inline void OrDie(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "benchmark: %s\n", status.ToString().c_str());
  std::exit(1);
}
template <typename T>
T OrDie(absl::StatusOr<T> value) {
  OrDie(value.status());
  return std::move(value).value();
}

}  // namespace weft::bench
