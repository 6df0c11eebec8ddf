// A conformance test: a function that all ranks of a bootstrap run, and its name.
#pragma once

#include <ostream>
#include <string>

#include <absl/status/status.h>
#include <gtest/gtest.h>

#include "weft/mesh/bootstrap.h"

namespace weft::testing {

struct ConformanceTest {
  const char* name;
  absl::Status (*body)(Bootstrap&);
};
inline void PrintTo(const ConformanceTest& test, std::ostream* out) { *out << test.name; }
inline std::string NameOf(const ::testing::TestParamInfo<ConformanceTest>& test) { return test.param.name; }

}  // namespace weft::testing
