#include "weft/mesh/key_value_store.h"

#include <filesystem>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_timeout.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Optional;
using ::weft::testing::kTestTimeout;
using ::weft::testing::StatusIs;

TEST(FileStore, ReturnsWhatWasSet) {
  const TempFolder folder;
  ASSERT_OK_AND_ASSIGN(const auto store, OpenFileStore(folder / "store"));
  for (const size_t bytes : {0, 1, 2, 4099, 200'003}) {
    std::string value(bytes, 'x');
    if (bytes > 2) value[1] = '\0';
    EXPECT_OK(store->Set("a/b.c_d-1", value));
    ASSERT_OK_AND_ASSIGN(const std::string read, store->Get("a/b.c_d-1", absl::ZeroDuration()));
    EXPECT_EQ(read, value);
  }
}

TEST(FileStore, KeysDoNotMix) {
  const TempFolder folder;
  ASSERT_OK_AND_ASSIGN(const auto store, OpenFileStore(folder.str()));
  const std::vector<std::string> keys = {"a", "a/a", "a.a", "a/a/a", "a_a", "a-a"};
  for (const std::string& key : keys) ASSERT_OK(store->Set(key, "value of " + key));
  ASSERT_OK(store->Delete("a.a"));
  for (const std::string& key : keys) {
    const auto value = store->Get(key, absl::ZeroDuration());
    if (key == "a.a") {
      EXPECT_EQ(value.status().code(), absl::StatusCode::kDeadlineExceeded);
    } else {
      ASSERT_OK(value);
      EXPECT_EQ(*value, "value of " + key);
    }
  }
}

TEST(FileStore, TwoHandlesOfAFolderShareTheirKeys) {
  const TempFolder folder;
  ASSERT_OK_AND_ASSIGN(const auto one, OpenFileStore(folder.str()));
  ASSERT_OK_AND_ASSIGN(const auto other, OpenFileStore(folder.str()));
  std::thread writer([&] { EXPECT_OK(one->Set("late", "here")); });
  ASSERT_OK_AND_ASSIGN(const std::string value, other->Get("late", kTestTimeout));
  writer.join();
  EXPECT_EQ(value, "here");
}

TEST(FileStore, NamesAKeyThatIsNotSet) {
  const TempFolder folder;
  ASSERT_OK_AND_ASSIGN(const auto store, OpenFileStore(folder.str()));
  EXPECT_THAT(store->Get("missing", absl::Milliseconds(2)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("missing did not appear within 2ms")));
  EXPECT_OK(store->Delete("missing"));
}

TEST(FileStore, GetsSeveralKeysAndSkipsThoseThatAreNotSet) {
  const TempFolder folder;
  ASSERT_OK_AND_ASSIGN(const auto store, OpenFileStore(folder.str()));
  ASSERT_OK(store->Set("1", "one"));
  ASSERT_OK(store->Set("3", "three"));
  ASSERT_OK_AND_ASSIGN(const auto values, store->GetAll({"1", "2", "3"}, absl::Milliseconds(1)));
  EXPECT_THAT(values,
              ElementsAre(Optional(std::string("one")), std::nullopt, Optional(std::string("three"))));
}

// Otherwise it would seem that ranks are missing.
TEST(FileStore, GetsNoKeysOfAFolderThatIsGone) {
  const TempFolder folder;
  ASSERT_OK_AND_ASSIGN(const auto store, OpenFileStore(folder / "store"));
  ASSERT_OK(store->Set("1", "one"));
  std::filesystem::remove_all(folder / "store");
  EXPECT_THAT(store->GetAll({"1", "2"}, absl::Milliseconds(1)),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("cannot open")));
}

// A reader never gets a part of a value.
TEST(FileStore, ReplacesAValueInOneStep) {
  const TempFolder folder;
  ASSERT_OK_AND_ASSIGN(const auto store, OpenFileStore(folder.str()));
  ASSERT_OK(store->Set("key", std::string(100'000, 'a')));
  std::thread writer([&] {
    for (int round = 0; round < 100; ++round)
      EXPECT_OK(store->Set("key", std::string(100'000, static_cast<char>('a' + round % 2))));
  });
  for (int round = 0; round < 100; ++round) {
    const std::string value = store->Get("key", absl::ZeroDuration()).value_or("?");
    EXPECT_EQ(value, std::string(100'000, value.front()));
  }
  writer.join();
  EXPECT_EQ(folder.FileCount(), 1);
}

TEST(FileStore, LeavesNoFileOfAValueThatCannotBeSet) {
  const TempFolder folder;
  ASSERT_OK_AND_ASSIGN(const auto store, OpenFileStore(folder.str()));
  std::filesystem::create_directory(folder / "key");
  EXPECT_THAT(store->Set("key", "value"), StatusIs(absl::StatusCode::kInternal, HasSubstr("cannot rename")));
  EXPECT_EQ(folder.FileCount(), 1U);
}

TEST(FileStore, NamesAFolderThatCannotBeUsed) {
  const TempFolder folder;
  const std::string file = folder.Write("file", "text");
  EXPECT_THAT(OpenFileStore(file), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(file)));
  EXPECT_THAT(OpenFileStore(""), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("empty")));
  EXPECT_THAT(OpenFileStore(folder / "no/such"),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("No such file or directory")));
}

}  // namespace
}  // namespace weft
