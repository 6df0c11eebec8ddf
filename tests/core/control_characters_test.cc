#include "weft/core/control_characters.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(EscapeForTerminal, KeepsLineFeedsTabsAndAllThatIsNoControlCharacter) {
  EXPECT_EQ(EscapeForTerminal("a\tb\nü€"), "a\tb\nü€");
  EXPECT_EQ(EscapeForTerminal(""), "");
}

TEST(EscapeForTerminal, EscapesAllOtherControlCharacters) {
  EXPECT_EQ(EscapeForTerminal("\x1b[2J\r\x7f"), "\\x1b[2J\\x0d\\x7f");
  EXPECT_EQ(EscapeForTerminal(std::string_view("\0", 1)), "\\x00");
}

}  // namespace
}  // namespace weft
