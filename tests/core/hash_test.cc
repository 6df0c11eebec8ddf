#include "weft/core/hash.h"

#include <set>
#include <string>

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(Hash64, GivesThePublishedXxh3Value) {
  // XXH3 of the empty string, from the specification of xxHash. Hashes must be the same in every build.
  EXPECT_EQ(Hash64(""), 0x2d06800538d394c2U);
}

TEST(Hash64, DependsOnEveryByteAndTheSeed) {
  std::set<uint64_t> hashes;
  std::string text(300, 'a');
  hashes.insert(Hash64(text));
  hashes.insert(Hash64(text, 1));
  for (char& letter : text) {
    letter = 'b';
    hashes.insert(Hash64(text));
  }
  EXPECT_EQ(hashes.size(), 302);
  EXPECT_EQ(Hash64(text), Hash64(text.data(), text.size()));
}

TEST(HashCombine, DependsOnTheOrder) {
  EXPECT_NE(HashCombine(1, 2), HashCombine(2, 1));
  EXPECT_NE(HashCombine(1, 2), HashCombine(1, 3));
  EXPECT_EQ(HashCombine(1, 2), HashCombine(1, 2));
}

}  // namespace
}  // namespace weft
