#include "src/train/output/event_file.h"

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_folder.h"

namespace weft {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

StepMetrics Example() {
  StepMetrics metrics;
  metrics.step = 3;
  metrics.loss = 2.5;
  metrics.peak_bytes.images = 2048;
  return metrics;
}

// Records of an event file, whose CRCs have been checked.
std::vector<std::string> RecordsOf(const std::string& file) {
  std::vector<std::string> records;
  for (size_t at = 0; at < file.size();) {
    uint64_t length = 0;
    std::memcpy(&length, file.data() + at, sizeof(length));
    records.push_back(file.substr(at + 12, length));
    EXPECT_EQ(file.substr(at, length + 16), TfRecord(records.back()));
    at += length + 16;
  }
  return records;
}

// The scalar of an event by a search for its bytes: the tag, then the key of simple_value.
float ScalarOf(const std::string& event, const std::string& tag) {
  const std::string field = absl::StrCat(std::string(1, static_cast<char>(tag.size())), tag, "\x15");
  const size_t at = event.find(field);
  EXPECT_NE(at, std::string::npos) << tag;
  float value = 0;
  std::memcpy(&value, event.data() + at + field.size(), sizeof(value));
  return value;
}

TEST(EventFile, HoldsTheNumbersOfEachStep) {
  // RFC 3720, appendix B.4, and the check value of the CRC's catalog.
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8A9136AA);
  EXPECT_EQ(Crc32c("123456789"), 0xE3069283);
  const TempFolder folder;
  {
    ASSERT_OK_AND_ASSIGN(EventFile file, EventFile::Create(folder / "new/events"));
    StepMetrics metrics = Example();
    ASSERT_OK(file.Write(metrics));
    metrics.loss = std::numeric_limits<double>::quiet_NaN();
    ASSERT_OK(file.Write(metrics));
  }
  std::string path;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "new/events")) path = entry.path();
  EXPECT_THAT(path, HasSubstr("tfevents"));
  const std::vector<std::string> records = RecordsOf(ReadFile(path));
  ASSERT_EQ(records.size(), 4);  // The second one says where the run starts.
  EXPECT_THAT(records[0], HasSubstr("brain.Event:2"));
  EXPECT_EQ(ScalarOf(records[2], "loss"), 2.5F);
  EXPECT_EQ(ScalarOf(records[2], "peak_bytes/images"), 2048);
  EXPECT_THAT(records[3], Not(HasSubstr("\x04loss\x15")));
}

// A run that is started again before its first checkpoint repeats all steps.
TEST(EventFile, TellsFromWhichStepTheRunRepeatsThoseOfAnEarlierOne) {
  // Field 2, step. Field 7, session_log: its field 1, status, is START (1).
  const std::string start = "\x3A\x02\x08\x01";
  const std::pair<int64_t, std::string> steps[] = {{1, "\x10\x01"}, {300, "\x10\xAC\x02"}};
  for (const auto& [first_step, field] : steps) {
    const TempFolder folder;
    ASSERT_OK_AND_ASSIGN(EventFile file, EventFile::Create(folder.str()));
    std::string path;
    for (const auto& entry : std::filesystem::directory_iterator(folder.str())) path = entry.path();
    EXPECT_EQ(RecordsOf(ReadFile(path)).size(), 1);  // A run without steps repeats none.
    StepMetrics metrics = Example();
    for (metrics.step = first_step; metrics.step < first_step + 2; ++metrics.step) {
      ASSERT_OK(file.Write(metrics));
    }
    const std::vector<std::string> records = RecordsOf(ReadFile(path));
    ASSERT_EQ(records.size(), 4);
    EXPECT_THAT(records[1], EndsWith(field + start));
  }
}

}  // namespace
}  // namespace weft
