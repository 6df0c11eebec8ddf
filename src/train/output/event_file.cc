#include "src/train/output/event_file.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include <absl/strings/str_cat.h>

#include "src/train/files/json.h"
#include "weft/core/status.h"

namespace weft {
namespace {

// Fields of Event, Summary, Summary.Value and SessionLog.
constexpr uint32_t kEventWallTime = 1, kEventStep = 2, kEventFileVersion = 3, kEventSummary = 5,
                   kEventSessionLog = 7;
constexpr uint32_t kSummaryValue = 1, kValueTag = 1, kValueSimpleValue = 2;
constexpr uint32_t kSessionStatus = 1, kSessionStart = 1;

// Writer of a message of protocol buffers.
class Message {
 public:
  Message& Varint(uint32_t field, uint64_t value) {
    Key(field, 0);
    AppendVarint(value);
    return *this;
  }
  Message& Double(uint32_t field, double value) {
    Key(field, 1);
    AppendLittleEndian(std::bit_cast<uint64_t>(value), 8);
    return *this;
  }
  Message& Bytes(uint32_t field, std::string_view bytes) {
    Key(field, 2);
    AppendVarint(bytes.size());
    text_ += bytes;
    return *this;
  }
  Message& Float(uint32_t field, float value) {
    Key(field, 5);
    AppendLittleEndian(std::bit_cast<uint32_t>(value), 4);
    return *this;
  }
  const std::string& text() const { return text_; }

  void AppendLittleEndian(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) text_ += static_cast<char>((value >> (8 * i)) & 0xFF);
  }

 private:
  void Key(uint32_t field, uint32_t wire_type) { AppendVarint((field << 3) | wire_type); }
  void AppendVarint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) text_ += static_cast<char>((value & 0x7F) | 0x80);
    text_ += static_cast<char>(value);
  }

  std::string text_;
};

constexpr std::array<uint32_t, 256> MakeCrcTable() {
  constexpr uint32_t kPolynomial = 0x82F63B78;  // Reflected.
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ kPolynomial : crc >> 1;
    table[byte] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kCrcTable = MakeCrcTable();

// A CRC of bytes that hold their own CRC is weak. The mask makes such records safe.
uint32_t MaskedCrc(std::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8;
}

double Now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void AddScalar(const std::string& tag, const Json& number, Message& summary) {
  if (!number.is_number()) return;
  const auto value = static_cast<float>(number.get<double>());
  summary.Bytes(kSummaryValue, Message().Bytes(kValueTag, tag).Float(kValueSimpleValue, value).text());
}

}  // namespace

uint32_t Crc32c(std::string_view bytes) {
  uint32_t crc = 0xFFFFFFFF;
  for (const char byte : bytes) crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<unsigned char>(byte)) & 0xFF];
  return ~crc;
}

std::string TfRecord(std::string_view content) {
  Message length;
  length.AppendLittleEndian(content.size(), 8);
  Message length_crc;
  length_crc.AppendLittleEndian(MaskedCrc(length.text()), 4);
  Message content_crc;
  content_crc.AppendLittleEndian(MaskedCrc(content), 4);
  return absl::StrCat(length.text(), length_crc.text(), ToAbsl(content), content_crc.text());
}

std::string ScalarEvent(const StepMetrics& metrics, double wall_time_s) {
  const auto json = ParseJson(ToJson(metrics));
  Message summary;
  for (const auto& [key, value] : json.items()) {
    if (key == "step") continue;
    AddScalar(key, value, summary);
    if (!value.is_object()) continue;
    for (const auto& [inner, number] : value.items())
      AddScalar(absl::StrCat(key, "/", inner), number, summary);
  }
  return Message()
      .Double(kEventWallTime, wall_time_s)
      .Varint(kEventStep, static_cast<uint64_t>(metrics.step))
      .Bytes(kEventSummary, summary.text())
      .text();
}

absl::StatusOr<EventFile> EventFile::Create(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return ErrnoStatus(error.value(), "create the folder", folder);
  // TensorBoard reads the files of a folder in the order of their names, which begin with the time.
  const std::string path = absl::StrCat(folder, "/events.out.tfevents.", static_cast<int64_t>(Now()),
                                        ".weft.", getpid(), ".", UniqueSuffix());
  WEFT_ASSIGN_OR_RETURN(File created, File::CreateNew(path));
  EventFile file(std::move(created));
  const std::string version =
      Message().Double(kEventWallTime, Now()).Bytes(kEventFileVersion, "brain.Event:2").text();
  WEFT_RETURN_IF_ERROR(file.Append(TfRecord(version)));
  return file;
}

absl::Status EventFile::Write(const StepMetrics& metrics) {
  std::string records;
  if (!started_) {
    records = TfRecord(Message()
                           .Double(kEventWallTime, Now())
                           .Varint(kEventStep, static_cast<uint64_t>(metrics.step))
                           .Bytes(kEventSessionLog, Message().Varint(kSessionStatus, kSessionStart).text())
                           .text());
  }
  started_ = true;
  return Append(absl::StrCat(records, TfRecord(ScalarEvent(metrics, Now()))));
}

absl::Status EventFile::Append(std::string_view records) {
  WEFT_RETURN_IF_ERROR(file_.WriteAt(bytes_, records.data(), records.size()));
  bytes_ += static_cast<int64_t>(records.size());
  return absl::OkStatus();
}

}  // namespace weft
