#include "weft/train/corpus.h"

#include <filesystem>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_folder.h"
#include "weft/train/embedded_text.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

template <typename T>
std::string Tokens(const std::vector<T>& tokens) {
  return {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(T)};
}

std::vector<int32_t> ReadTokens(const Corpus& corpus, int64_t first, int64_t count,
                                int64_t vocab_size = 256) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  const absl::Status status = corpus.Read(first, vocab_size, absl::MakeSpan(tokens));
  EXPECT_TRUE(status.ok()) << status;
  return tokens;
}

std::string ErrorOf(const std::vector<std::string>& paths) {
  const absl::StatusOr<Corpus> corpus = Corpus::Open(paths);
  EXPECT_FALSE(corpus.ok());
  return std::string(corpus.status().message());
}

TEST(Corpus, ReadsTextAsBytesAcrossFiles) {
  const TempFolder folder;
  const std::vector<std::string> paths = {folder.Write("b.txt", "xyz"), folder.Write("a.md", "\xff!")};
  const Corpus corpus = Corpus::Open(paths).value();
  EXPECT_EQ(corpus.tokens(), 5);
  EXPECT_THAT(ReadTokens(corpus, 0, 5), ElementsAre('x', 'y', 'z', 255, '!'));
  EXPECT_THAT(ReadTokens(corpus, 2, 2), ElementsAre('z', 255));
  EXPECT_THAT(ReadTokens(corpus, 4, 1), ElementsAre('!'));
}

TEST(Corpus, ReadsEveryRangeOverManySmallAndEmptyFiles) {
  const TempFolder folder;
  std::string all;
  for (int i = 0; i < 9; ++i) {
    const std::string text(static_cast<size_t>(i % 3), static_cast<char>('a' + i));
    folder.Write(std::to_string(i) + ".txt", text);
    all += text;
  }
  const Corpus corpus = Corpus::Open(std::vector<std::string>{folder.str()}).value();
  ASSERT_EQ(corpus.tokens(), static_cast<int64_t>(all.size()));
  for (size_t first = 0; first < all.size(); ++first) {
    for (size_t count = 0; first + count <= all.size(); ++count) {
      const std::string expected = all.substr(first, count);
      const auto read = ReadTokens(corpus, static_cast<int64_t>(first), static_cast<int64_t>(count));
      EXPECT_EQ(std::string(read.begin(), read.end()), expected);
    }
  }
}

TEST(Corpus, ReadsTokenFilesOfBothWidths) {
  const TempFolder folder;
  const std::string narrow = Tokens<uint16_t>({0, 1, 65535});
  const std::string wide = Tokens<uint32_t>({70000, 2});
  for (const char* name : {"a.bin", "a.u16"}) {
    const Corpus corpus = Corpus::Open(std::vector<std::string>{folder.Write(name, narrow)}).value();
    EXPECT_THAT(ReadTokens(corpus, 0, 3, 65536), ElementsAre(0, 1, 65535)) << name;
  }
  const Corpus corpus = Corpus::Open(std::vector<std::string>{folder.Write("a.u32", wide)}).value();
  EXPECT_THAT(ReadTokens(corpus, 0, 2, 128256), ElementsAre(70000, 2));
}

TEST(Corpus, ReadsFoldersInOrderOfPathsWithoutHiddenFilesAndFlightRecorders) {
  const TempFolder folder;
  folder.Write("b/1.txt", "3");
  folder.Write("a.txt", "1");
  folder.Write("b.txt", "2");
  folder.Write(".hidden", "x");
  folder.Write("b/.git/config", "x");
  folder.Write("weft-dump/rank-0.json", "x");
  const Corpus corpus = Corpus::Open(std::vector<std::string>{folder.str()}).value();
  EXPECT_THAT(ReadTokens(corpus, 0, corpus.tokens()), ElementsAre('1', '2', '3'));
}

TEST(Corpus, KeepsTheOrderOfThePaths) {
  const TempFolder folder;
  const std::vector<std::string> paths = {folder.Write("z.txt", "1"), folder.Write("a.txt", "2"),
                                          folder.Write("z.txt", "1")};
  EXPECT_THAT(ReadTokens(Corpus::Open(paths).value(), 0, 3), ElementsAre('1', '2', '1'));
}

TEST(Corpus, FollowsLinksToFilesAndFolders) {
  const TempFolder folder;
  const TempFolder elsewhere;
  fs::create_symlink(elsewhere.Write("blob", "1"), folder / "a.txt");
  elsewhere.Write("more/b.txt", "2");
  fs::create_symlink(elsewhere / "more", folder / "more");
  const Corpus corpus = Corpus::Open(std::vector<std::string>{folder.str()}).value();
  EXPECT_THAT(ReadTokens(corpus, 0, corpus.tokens()), ElementsAre('1', '2'));
}

TEST(Corpus, NamesDanglingAndCircularLinks) {
  const TempFolder folder;
  folder.Write("a.txt", "1");
  fs::create_symlink(folder / "gone", folder / "dangling.txt");
  EXPECT_THAT(ErrorOf({folder.str()}), HasSubstr("dangling.txt' does not exist"));
  fs::remove(folder / "dangling.txt");
  fs::create_symlink(folder.str(), folder / "loop");
  EXPECT_THAT(ErrorOf({folder.str()}), HasSubstr("contains itself"));
}

TEST(Corpus, NamesMissingEmptyAndTruncatedFiles) {
  const TempFolder folder;
  EXPECT_THAT(ErrorOf({folder / "none.txt"}), HasSubstr("none.txt': No such file"));
  EXPECT_TRUE(absl::IsNotFound(Corpus::Open(std::vector<std::string>{folder / "none.txt"}).status()));
  EXPECT_THAT(ErrorOf({folder.str()}), HasSubstr("has no files"));
  EXPECT_THAT(ErrorOf({folder.Write("empty.txt", "")}), HasSubstr("the data is empty"));
  EXPECT_THAT(ErrorOf({folder.Write("odd.u16", "abc")}), HasSubstr("not a multiple of 2"));
  EXPECT_THAT(ErrorOf({folder.Write("odd.u32", "abcdef")}), HasSubstr("not a multiple of 4"));
  EXPECT_THAT(ErrorOf({"/dev/null"}), HasSubstr("not a file or a folder"));
}

TEST(Corpus, ReadsLossMasksAcrossFiles) {
  const TempFolder folder;
  folder.Write("a.u16", Tokens<uint16_t>({7, 8}));
  folder.Write("a.u16.mask", {'\1', '\0'});
  folder.Write("b.u16", Tokens<uint16_t>({9}));
  folder.Write("b.u16.mask", {'\1'});
  const Corpus corpus = Corpus::Open(std::vector<std::string>{folder.str()}, true).value();
  EXPECT_THAT(ReadTokens(corpus, 0, 3), ElementsAre(7, 8, 9));
  std::vector<uint8_t> mask(2);
  EXPECT_OK(corpus.ReadLossMask(1, absl::MakeSpan(mask)));
  EXPECT_THAT(mask, ElementsAre(0, 1));
}

TEST(Corpus, RefusesMasksThatAreMissingUnwantedOrWrong) {
  const TempFolder folder;
  const std::vector<std::string> paths = {folder.Write("a.txt", "abc")};
  EXPECT_THAT(Corpus::Open(paths, true).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("a.txt.mask")));
  folder.Write("a.txt.mask", "\1\1");
  EXPECT_THAT(Corpus::Open(paths, true).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("has 2 bytes, but")));
  EXPECT_THAT(Corpus::Open(paths).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("give --loss-mask true")));
  folder.Write("a.txt.mask", "\1\2\1");
  std::vector<uint8_t> mask(3);
  EXPECT_THAT(Corpus::Open(paths, true)->ReadLossMask(0, absl::MakeSpan(mask)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("the byte 2 at position 1")));
}

TEST(Corpus, RefusesAMaskWithoutItsDataFile) {
  const TempFolder folder;
  folder.Write("a.txt", "abc");
  folder.Write("a.txt.mask", "\1\1\1");
  const std::string lost = folder.Write("b/c.txt.mask", "\1\1\1");
  for (const bool with_loss_mask : {false, true}) {
    EXPECT_THAT(
        Corpus::Open(std::vector<std::string>{folder.str()}, with_loss_mask).status(),
        StatusIs(absl::StatusCode::kDataLoss, HasSubstr("'" + lost + "' is the mask of '" + folder.str() +
                                                        "/b/c.txt', which is not in the data")));
  }
  fs::remove(lost);
  EXPECT_OK(Corpus::Open(std::vector<std::string>{folder.str()}, true).status());
}

TEST(Corpus, RefusesAnUnwantedMaskThatCannotBeOpened) {
  const TempFolder folder;
  const std::vector<std::string> paths = {folder.Write("a.txt", "abc")};
  for (const char* target : {"a.txt.mask", "none"}) {
    fs::remove(folder / "a.txt.mask");
    fs::create_symlink(target, folder / "a.txt.mask");
    EXPECT_THAT(Corpus::Open(paths).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a.txt.mask")))
        << target;
  }
}

TEST(Corpus, TakesDataWhoseNamesLeaveNoRoomForAMask) {
  const TempFolder folder;
  const std::vector<std::string> paths = {folder.Write(std::string(255, 'a'), "abc")};
  EXPECT_OK(Corpus::Open(paths).status());
}

TEST(Corpus, RefusesToMixFormats) {
  const TempFolder folder;
  const std::string text = folder.Write("a.txt", "text");
  const std::string narrow = folder.Write("a.u16", Tokens<uint16_t>({1}));
  const std::string wide = folder.Write("a.u32", Tokens<uint32_t>({1}));
  EXPECT_THAT(ErrorOf({text, narrow}), HasSubstr("give files of one format"));
  EXPECT_THAT(ErrorOf({narrow, wide}), HasSubstr("32-bit tokens"));
}

TEST(Corpus, NamesFileAndPositionOfATokenOutsideTheVocabulary) {
  const TempFolder folder;
  const std::vector<std::string> paths = {folder.Write("a.u32", Tokens<uint32_t>({1, 2, 3})),
                                          folder.Write("b.u32", Tokens<uint32_t>({4, 4000000000}))};
  const Corpus corpus = Corpus::Open(paths).value();
  std::vector<int32_t> tokens(5);
  const absl::Status status = corpus.Read(0, 100, absl::MakeSpan(tokens));
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("b.u32' has token 4000000000 at position 1"));
  EXPECT_TRUE(corpus.Read(0, 5, absl::MakeSpan(tokens).subspan(0, 4)).ok());
}

TEST(Corpus, ChecksEveryTokenInExactlyOnePart) {
  const TempFolder folder;
  for (int64_t bad = 0; bad < 7; ++bad) {
    std::string text(7, 'a');
    text[static_cast<size_t>(bad)] = '\xf0';
    const Corpus corpus = Corpus::Open(std::vector<std::string>{folder.Write("a.txt", text)}).value();
    int found = 0;
    for (int part = 0; part < 3; ++part) {
      found += corpus.CheckTokens(131, part, 3).ok() ? 0 : 1;
    }
    EXPECT_EQ(found, 1) << bad;
    EXPECT_TRUE(corpus.CheckTokens(256, 0, 1).ok());
  }
}

TEST(Corpus, ChecksEveryByteOfAMaskInExactlyOnePart) {
  const TempFolder folder;
  const std::vector<std::string> paths = {folder.Write("a.txt", std::string(7, 'a'))};
  for (size_t at = 0; at < 7; ++at) {
    for (const char byte : {'\1', '\2'}) {
      std::string mask(7, '\0');
      mask[at] = byte;
      folder.Write("a.txt.mask", mask);
      const Corpus corpus = Corpus::Open(paths, true).value();
      int losses = 0;
      int errors = 0;
      for (int part = 0; part < 3; ++part) {
        const absl::StatusOr<bool> has_loss = corpus.CheckLossMask(part, 3, [] { return false; });
        losses += has_loss.ok() && *has_loss ? 1 : 0;
        errors += has_loss.ok() ? 0 : 1;
      }
      EXPECT_EQ(losses, byte == 1 && at > 0) << at;  // The first token is no target.
      EXPECT_EQ(errors, byte == 2) << at;
    }
  }
}

TEST(Corpus, StopsBetweenReadsOfAMask) {
  const TempFolder folder;
  const std::vector<std::string> paths = {folder.Write("a.txt", std::string(200'000, 'a'))};
  folder.Write("a.txt.mask", std::string(200'000, '\1'));
  const Corpus corpus = Corpus::Open(paths, true).value();
  int calls = 0;
  EXPECT_TRUE(absl::IsCancelled(corpus.CheckLossMask(0, 1, [&] { return ++calls == 2; }).status()));
  EXPECT_EQ(calls, 2);
}

// No token of a larger vocabulary can be wrong, so its data are not read.
TEST(Corpus, ChecksTheLargestTokenOfItsFormatToo) {
  const TempFolder folder;
  const Corpus corpus = Corpus::Open(std::vector<std::string>{folder.Write("a.txt", "a\xff")}).value();
  EXPECT_TRUE(absl::IsDataLoss(corpus.CheckTokens(255, 0, 1)));
  EXPECT_TRUE(corpus.CheckTokens(256, 0, 1).ok());
}

int64_t OpenDescriptors() {
  int64_t count = 0;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) count += entry.is_symlink() ? 1 : 0;
  return count;
}

TEST(Corpus, KeepsABoundedNumberOfFilesOpen) {
  const TempFolder folder;
  const int files = 100;
  for (int i = 0; i < files; ++i)
    folder.Write(std::to_string(i + 1000), std::string(2, static_cast<char>(i)));
  const Corpus corpus = Corpus::Open(std::vector<std::string>{folder.str()}).value();
  const int64_t before = OpenDescriptors();
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < files; ++i) EXPECT_THAT(ReadTokens(corpus, 2 * i + 1, 1), ElementsAre(i));
    EXPECT_EQ(OpenDescriptors() - before, 32);
  }
  fs::remove(folder / std::to_string(1000 + files - 1));
  EXPECT_THAT(ReadTokens(corpus, 2 * files - 2, 2), ElementsAre(files - 1, files - 1));
}

TEST(Corpus, ReportsAFileThatBecameShorter) {
  const TempFolder folder;
  const std::string path = folder.Write("a.txt", "abcdef");
  const Corpus corpus = Corpus::Open(std::vector<std::string>{path}).value();
  folder.Write("a.txt", "abc");
  std::vector<int32_t> tokens(6);
  EXPECT_TRUE(absl::IsDataLoss(corpus.Read(0, 256, absl::MakeSpan(tokens))));
}

TEST(Corpus, HoldsTheEmbeddedText) {
  const Corpus corpus = Corpus::FromText("embedded text", EmbeddedText());
  EXPECT_GT(corpus.tokens(), 10'000);
  const auto start = ReadTokens(corpus, 0, 40);
  EXPECT_EQ(std::string(start.begin(), start.end()), EmbeddedText().substr(0, 40));
  EXPECT_NE(EmbeddedText().find("Apache License"), std::string_view::npos);
}

}  // namespace
}  // namespace weft
