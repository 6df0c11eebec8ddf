// Variables of the environment that are the defaults of flags.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/parsed_arguments.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/status_matchers.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::ScopedVariable;
using ::weft::testing::StatusIs;

TEST(FlagVariables, ChooseTheShareDomainOfARunWithoutTheFlag) {
  const ScopedVariable none("WEFT_SHARE_DOMAIN", "none");
  EXPECT_EQ(ParsedConfig({}).parallel.share_domain, ShareDomain::kNone);
  EXPECT_EQ(ParsedConfig({"--share-domain", "node"}).parallel.share_domain, ShareDomain::kNode);
  const ScopedVariable wrong("WEFT_SHARE_DOMAIN", "foo");
  for (const char* word : {"train", "generate"}) {
    EXPECT_THAT(ParseCommandLine({word}).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("WEFT_SHARE_DOMAIN is 'foo'")));
  }
  EXPECT_EQ(ParsedConfig({"--share-domain", "node"}).parallel.share_domain, ShareDomain::kNode);
}

}  // namespace
}  // namespace weft
