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

TEST(EscapeForTerminal, EscapesControlCharactersOfTwoBytes) {
  EXPECT_EQ(EscapeForTerminal("\xC2\x80 \xC2\x9B\x32J\xC2\x9F"), "\\x80 \\x9b2J\\x9f");
  // U+00A0, a lone first byte, and characters whose second byte is one of a control character.
  EXPECT_EQ(EscapeForTerminal("\xC2\xA0\xC2 \xC3\x9B\xC2"), "\xC2\xA0\xC2 \xC3\x9B\xC2");
}

}  // namespace
}  // namespace weft
