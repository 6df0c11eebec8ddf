#include "weft/train/safetensors.h"

#include <cstring>
#include <filesystem>
#include <limits>
#include <numeric>
#include <sys/stat.h>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_folder.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::StatusIs;

std::string File(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + header + data;
}

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string ErrorOf(const std::string& content) {
  const TempFolder folder;
  folder.Write("model.safetensors", content);
  const auto reader = SafetensorsReader::Open(folder.str());
  EXPECT_FALSE(reader.ok());
  EXPECT_TRUE(absl::IsDataLoss(reader.status()));
  return std::string(reader.status().message());
}

std::vector<float> ReadFloats(const SafetensorsReader& reader, const std::string& name, int64_t first,
                              int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  const absl::Status status = reader.Read(name, first, absl::MakeSpan(values));
  EXPECT_TRUE(status.ok()) << status;
  return values;
}

TEST(SafetensorsReader, ReadsRangesOfEveryFloatTypeAsFp32) {
  const TempFolder folder;
  // The values 1, 2, 3 in each type; 1 is 0x3f80 in bf16 and 0x3c00 in f16.
  folder.Write("model.safetensors", File(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},
                                            "b":{"dtype":"BF16","shape":[3],"data_offsets":[12,18]},
                                            "c":{"dtype":"F16","shape":[1,3],"data_offsets":[18,24]},
                                            "__metadata__":{"format":"pt"}})",
                                         Bytes<float>({1, 2, 3}) + Bytes<uint16_t>({0x3f80, 0x4000, 0x4040}) +
                                             Bytes<uint16_t>({0x3c00, 0x4000, 0x4200})));
  const SafetensorsReader reader = SafetensorsReader::Open(folder.str()).value();
  EXPECT_EQ(reader.entries().size(), 3);
  for (const char* name : {"a", "b", "c"}) {
    EXPECT_THAT(ReadFloats(reader, name, 0, 3), ElementsAre(1, 2, 3)) << name;
    EXPECT_THAT(ReadFloats(reader, name, 1, 1), ElementsAre(2)) << name;
    EXPECT_TRUE(ReadFloats(reader, name, 3, 0).empty());
  }
  EXPECT_TRUE(reader.Check("a", {3}).ok());
  EXPECT_TRUE(reader.Check("c", {1, 3}).ok());
}

TEST(SafetensorsReader, ReadsSixteenBitTensorsLongerThanOneRead) {
  const TempFolder folder;
  constexpr int64_t kCount = (1 << 20) + 3;
  std::vector<uint16_t> bits(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    bits[i] = static_cast<uint16_t>(i % 0x7f80);  // All of these are finite.
  }
  folder.Write("model.safetensors", File(absl::StrCat(R"({"a":{"dtype":"BF16","shape":[)", kCount,
                                                      R"(],"data_offsets":[0,)", 2 * kCount, "]}}"),
                                         Bytes(bits)));
  const auto values = ReadFloats(SafetensorsReader::Open(folder.str()).value(), "a", 0, kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(values[i], ToFloat(BF16{bits[i]})) << i;
  }
}

TEST(SafetensorsReader, ReadsShardsThroughTheIndex) {
  const TempFolder folder;
  folder.Write("m-1.safetensors",
               File(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", Bytes<float>({5})));
  folder.Write("m-2.safetensors",
               File(R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", Bytes<float>({6})));
  folder.Write("model.safetensors.index.json",
               R"({"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})");
  const SafetensorsReader reader = SafetensorsReader::Open(folder.str()).value();
  EXPECT_THAT(ReadFloats(reader, "a", 0, 1), ElementsAre(5));
  EXPECT_THAT(ReadFloats(reader, "b", 0, 1), ElementsAre(6));
}

TEST(SafetensorsReader, NamesTheFaultOfAnIndex) {
  const TempFolder folder;
  const std::string one =
      File(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", Bytes<float>({5}));
  folder.Write("m-1.safetensors", one);
  const auto error = [&](const std::string& index) {
    folder.Write("model.safetensors.index.json", index);
    const absl::Status status = SafetensorsReader::Open(folder.str()).status();
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  };
  EXPECT_THAT(error(R"({"weight_map":{"b":"m-1.safetensors"}})"),
              HasSubstr("names 'm-1.safetensors' for tensor 'b'"));
  EXPECT_THAT(error(R"({"weight_map":{"a":"m-9.safetensors"}})"),
              AllOf(HasSubstr("/m-9.safetensors' is missing, but '"),
                    HasSubstr("/model.safetensors.index.json' names it: download it again")));
  EXPECT_THAT(error(R"({"weight_map":{"a":"../m-1.safetensors"}})"), HasSubstr("is not a file name"));
  EXPECT_THAT(error(R"({"weight_map":{"a":".."}})"), HasSubstr("is not a file name"));
  EXPECT_THAT(error(R"({"weight_map":{"a":"m-1.safetensors\u0000x"}})"), HasSubstr("is not a file name"));
  EXPECT_THAT(error(R"({"weight_map":{"a":{}}})"), HasSubstr("is not a file name"));
  EXPECT_THAT(error(R"({"weight_map":{"a":"m-1.safetensors","a":"m-1.safetensors"}})"), HasSubstr("twice"));
  EXPECT_THAT(error(R"({"weight_map":[]})"), HasSubstr("not a JSON object with a weight_map"));
  EXPECT_THAT(error(R"({"metadata":{"a":[1,{}]}})"), HasSubstr("not a JSON object with a weight_map"));
  EXPECT_THAT(error("{"), HasSubstr("not a JSON object"));
}

TEST(SafetensorsReader, NamesAFolderWithoutWeights) {
  const TempFolder folder;
  const absl::Status status = SafetensorsReader::Open(folder.str()).status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("neither model.safetensors nor"));
}

TEST(SafetensorsReader, NamesWeightsOfAnotherFormat) {
  const TempFolder folder;
  folder.Write("pytorch_model.bin", "pickled");
  EXPECT_THAT(SafetensorsReader::Open(folder.str()).status(),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("has pytorch_model.bin, but"), HasSubstr("save_pretrained"))));
  folder.Write("sharded/pytorch_model.bin.index.json", "{}");
  EXPECT_THAT(SafetensorsReader::Open(folder / "sharded").status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("has pytorch_model.bin.index.json, but")));
}

TEST(SafetensorsReader, NamesTheFaultOfAFile) {
  EXPECT_THAT(ErrorOf("abc"), HasSubstr("only 3 bytes"));
  EXPECT_THAT(ErrorOf(std::string(8, '\x7f')), HasSubstr("truncated"));
  EXPECT_THAT(ErrorOf(File("{nonsense", "")), HasSubstr("not a JSON object"));
  EXPECT_THAT(ErrorOf(File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "1234")),
              HasSubstr("tensor 'a' lies at bytes 0 to 8, but the file has 4"));
  EXPECT_THAT(ErrorOf(File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "1234")),
              HasSubstr("do not fit"));
  EXPECT_THAT(ErrorOf(File(R"({"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}})", "1234")),
              HasSubstr("unknown dtype 'F99'"));
  EXPECT_THAT(ErrorOf(File(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", "1234")),
              HasSubstr("4 to 0"));
  EXPECT_THAT(ErrorOf(File(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "1234")),
              HasSubstr("well-formed"));
  EXPECT_THAT(ErrorOf(File(R"({"a":{"dtype":"F32"}})", "")), HasSubstr("well-formed"));
  EXPECT_THAT(
      ErrorOf(File(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,4]}})", "1234")),
      HasSubstr("do not fit"));
  EXPECT_THAT(ErrorOf(File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
                               "b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
                           "123456789012")),
              HasSubstr("'a' and 'b' overlap"));
}

constexpr const char* kTwoFloats = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                                      "b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})";

TEST(SafetensorsReader, RefusesDataThatBelongToNoTensor) {
  EXPECT_THAT(ErrorOf(File(kTwoFloats, "123456789")), HasSubstr("belong to no tensor"));
  const auto offsets = [](const char* a, const char* b) {
    return absl::StrCat(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":)", a,
                        R"(},"b":{"dtype":"F32","shape":[1],"data_offsets":)", b, "}}");
  };
  EXPECT_THAT(ErrorOf(File(offsets("[0,4]", "[8,12]"), "123456789012")), HasSubstr("belong to no tensor"));
  EXPECT_THAT(ErrorOf(File(offsets("[4,8]", "[8,12]"), "123456789012")), HasSubstr("belong to no tensor"));
  EXPECT_THAT(ErrorOf(File(offsets("[0,4]", "[0,4]"), "1234")), HasSubstr("overlap"));
  EXPECT_THAT(ErrorOf(File("{}", "1")), HasSubstr("belong to no tensor"));
}

// One flipped bit in the length made the header end in its padding, and shifted all data.
TEST(SafetensorsReader, RefusesEveryOtherLengthOfTheHeader) {
  const std::string good = File(std::string(kTwoFloats) + std::string(64, ' '), "12345678");
  for (int bit = 0; bit < 64; ++bit) {
    std::string bad = good;
    bad[static_cast<size_t>(bit / 8)] =
        static_cast<char>(bad[static_cast<size_t>(bit / 8)] ^ (1 << (bit % 8)));
    ErrorOf(bad);
  }
}

TEST(SafetensorsReader, RefusesDuplicateNames) {
  EXPECT_THAT(ErrorOf(File(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                               "a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                           "12345678")),
              HasSubstr("tensor 'a' is given twice"));
  EXPECT_THAT(ErrorOf(File(R"({"a":{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]}})", "1234")),
              HasSubstr("well-formed"));
  EXPECT_THAT(ErrorOf(File(R"({"__metadata__":{},"__metadata__":{}})", "")), HasSubstr("twice"));
}

TEST(SafetensorsReader, RefusesBytesAroundTheJson) {
  for (const std::string& header :
       {std::string(kTwoFloats) + "x", std::string(kTwoFloats) + '\0' + "x", std::string(kTwoFloats) + "{}",
        " " + std::string(kTwoFloats), "\xef\xbb\xbf" + std::string(kTwoFloats)}) {
    ErrorOf(File(header, "12345678"));
  }
}

TEST(SafetensorsReader, RefusesMalformedParts) {
  for (const char* header :
       {R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", R"({"a":[]})", R"({"a":1})",
        R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}})",
        R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})",
        R"({"a":{"dtype":["F32"],"shape":[1],"data_offsets":[0,4]}})", R"({"a":{"dtype":"F32","shape":1}})",
        R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})",
        R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})"}) {
    EXPECT_THAT(ErrorOf(File(header, "1234")), HasSubstr("tensor 'a' lacks a well-formed")) << header;
  }
  for (const char* header :
       {R"({"__metadata__":{"a":1}})", R"({"__metadata__":[]})", R"({"__metadata__":{"a":{}}})"}) {
    EXPECT_THAT(ErrorOf(File(header, "")), HasSubstr("__metadata__ is not an object of strings")) << header;
  }
}

TEST(SafetensorsReader, BoundsTheMemoryOfAHeader) {
  EXPECT_THAT(ErrorOf(File("{\"a\":" + std::string(200'000, '[') + std::string(200'000, ']') + "}", "")),
              HasSubstr("more than 8 levels"));
  EXPECT_THAT(ErrorOf(File("{\"" + std::string(2 << 20, 'x') + "\":1}", "")), HasSubstr("in one string"));
  std::string many = "{";
  for (int i = 0; i <= 200'000; ++i) {
    absl::StrAppend(&many, i == 0 ? "" : ",", "\"", i,
                    R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})");
  }
  EXPECT_THAT(ErrorOf(File(many + "}", "")), HasSubstr("more than 200000 tensors"));
  const std::string name(300, 'x');
  const std::string error = ErrorOf(File(absl::StrCat("{\"", name, "\x01\":1}"), ""));
  EXPECT_LT(error.size(), 300);
  EXPECT_THAT(ErrorOf(File(absl::StrCat("{\"", name, "\":1}"), "")), Not(HasSubstr(name)));
}

TEST(SafetensorsReader, RefusesAHeaderAboveTheLimitOfTheFormat) {
  const TempFolder folder;
  const uint64_t length = 100'000'001;
  folder.Write("model.safetensors", std::string(reinterpret_cast<const char*>(&length), sizeof(length)));
  std::filesystem::resize_file(folder / "model.safetensors", length + 8);
  EXPECT_THAT(std::string(SafetensorsReader::Open(folder.str()).status().message()),
              HasSubstr("but the format allows 100000000"));
}

TEST(SafetensorsReader, FollowsLinksWithinTheStoreOfTheModelOnly) {
  const TempFolder folder;
  const std::string content = File(kTwoFloats, "12345678");
  folder.Write("cache/models--a/blobs/1234", content);
  folder.Write("cache/elsewhere", content);
  folder.Write("cache/models--a/snapshots/5678/config.json", "{}");
  const std::string snapshot = folder / "cache/models--a/snapshots/5678";
  const std::string weights = snapshot + "/model.safetensors";
  std::filesystem::create_symlink("../../blobs/1234", weights);
  EXPECT_TRUE(SafetensorsReader::Open(snapshot).ok());
  std::filesystem::create_symlink(snapshot, folder / "link");
  EXPECT_TRUE(SafetensorsReader::Open(folder / "link").ok());
  std::filesystem::remove(weights);
  std::filesystem::create_symlink("../../../elsewhere", weights);
  const absl::Status status = SafetensorsReader::Open(snapshot).status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("outside of the model's folder"));
}

TEST(SafetensorsReader, DoesNotWaitForAFifo) {
  const TempFolder folder;
  ASSERT_EQ(mkfifo((folder / "model.safetensors").c_str(), 0600), 0);
  EXPECT_THAT(std::string(SafetensorsReader::Open(folder.str()).status().message()), HasSubstr("FIFO"));
}

TEST(SafetensorsReader, ChecksThatATensorExistsWithItsShapeAndType) {
  const TempFolder folder;
  folder.Write("model.safetensors", File(R"({"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},
                                            "n":{"dtype":"I64","shape":[1],"data_offsets":[8,16]}})",
                                         std::string(16, '\0')));
  const SafetensorsReader reader = SafetensorsReader::Open(folder.str()).value();
  EXPECT_THAT(reader.Check("z", {1}),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr(absl::StrCat("'", folder.str(), "' has the tensor 'z'"))));
  EXPECT_THAT(std::string(reader.Check("a", {2, 1}).message()),
              HasSubstr("has shape [1, 2], but by config.json it must be [2, 1]"));
  EXPECT_THAT(std::string(reader.Check("n", {1}).message()),
              HasSubstr("'n' is I64; weights must be F32, F16 or BF16"));
}

TEST(SafetensorsWriter, WritesTheRangesOfSeveralWritersToOneFile) {
  const TempFolder folder;
  const std::string path = folder / "model.safetensors";
  const std::vector<SafetensorsLayout::Tensor> tensors = {{"b", {2, 3}}, {"empty", {0, 4}}, {"a", {5}}};
  const SafetensorsLayout layout(tensors);
  ASSERT_TRUE(SafetensorsWriter::Create(path, layout).ok());
  EXPECT_FALSE(std::filesystem::exists(path));
  SafetensorsWriter first = SafetensorsWriter::Open(path, layout).value();
  SafetensorsWriter second = SafetensorsWriter::Open(path, layout).value();
  ASSERT_TRUE(second.Write("a", 2, {7, 8, 9}).ok());
  ASSERT_TRUE(first.Write("b", 0, {1, 2, 3, 4}).ok());
  ASSERT_TRUE(second.Write("b", 4, {5, 6}).ok());
  ASSERT_TRUE(first.Write("a", 0, {-1, -2}).ok());
  ASSERT_TRUE(first.Close().ok());
  ASSERT_TRUE(second.Close().ok());
  ASSERT_TRUE(SafetensorsWriter::Commit(path).ok());

  EXPECT_EQ(folder.FileCount(), 1);
  const SafetensorsReader reader = SafetensorsReader::Open(folder.str()).value();
  EXPECT_TRUE(reader.Check("b", {2, 3}).ok());
  EXPECT_TRUE(reader.Check("empty", {0, 4}).ok());
  EXPECT_THAT(ReadFloats(reader, "b", 0, 6), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(ReadFloats(reader, "a", 0, 5), ElementsAre(-1, -2, 7, 8, 9));
}

TEST(SafetensorsWriter, RoundsToTheDtypeOfTheLayout) {
  const TempFolder folder;
  const std::vector<SafetensorsLayout::Tensor> tensors = {{"a", {2}}, {"b", {3}}};
  const struct {
    DType dtype;
    std::string name;
    float rounded;
  } cases[] = {{DType::kBF16, "BF16", 1.0F}, {DType::kF16, "F16", 1.0F + 0x1p-10F}};
  for (const auto& [dtype, name, rounded] : cases) {
    const std::string path = folder / (name + "/model.safetensors");
    folder.Write(name + "/other", "");
    const SafetensorsLayout layout(tensors, dtype);
    EXPECT_EQ(layout.file_bytes(), static_cast<int64_t>(layout.header().size()) + 5 * 2);
    ASSERT_TRUE(SafetensorsWriter::Create(path, layout).ok());
    SafetensorsWriter writer = SafetensorsWriter::Open(path, layout).value();
    ASSERT_TRUE(writer.Write("b", 1, std::vector<float>{1.0F + 0x1p-10F, -3.0F}).ok());
    const absl::Status large = writer.Write("a", 0, std::vector<float>{0.0F, 70000.0F});
    EXPECT_EQ(absl::IsOutOfRange(large), dtype == DType::kF16) << large;
    const absl::Status largest =
        writer.Write("a", 0, std::vector<float>{0.0F, std::numeric_limits<float>::max()});
    EXPECT_TRUE(absl::IsOutOfRange(largest)) << name;
    EXPECT_TRUE(writer.Write("a", 0, std::vector<float>{0.0F, std::numeric_limits<float>::infinity()}).ok());
    ASSERT_TRUE(writer.Close().ok());
    ASSERT_TRUE(SafetensorsWriter::Commit(path).ok());
    const SafetensorsReader reader = SafetensorsReader::Open(folder / name).value();
    EXPECT_EQ(reader.entries().at("b").dtype, name);
    std::vector<float> values(2);
    ASSERT_TRUE(reader.Read("b", 1, absl::MakeSpan(values)).ok());
    EXPECT_EQ(values, (std::vector<float>{rounded, -3.0F}));
  }
}

TEST(SafetensorsWriter, StartsDataAtAMultipleOf64) {
  for (size_t length = 1; length < 70; ++length) {
    const std::vector<SafetensorsLayout::Tensor> tensors = {{std::string(length, 'x'), {1}}};
    EXPECT_EQ(SafetensorsLayout(tensors).header().size() % 64, 0);
  }
}

TEST(SafetensorsWriter, LeavesNoFileAfterDiscard) {
  const TempFolder folder;
  const std::string path = folder / "model.safetensors";
  const std::vector<SafetensorsLayout::Tensor> tensors = {{"a", {2}}};
  const SafetensorsLayout layout(tensors);
  ASSERT_TRUE(SafetensorsWriter::Create(path, layout).ok());
  SafetensorsWriter::Discard(path);
  EXPECT_EQ(folder.FileCount(), 0);
  const absl::Status status = SafetensorsWriter::Open(path, layout).status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("all ranks share"));
}

TEST(SafetensorsWriter, ReplacesAPartialFileOfAnEarlierRun) {
  const TempFolder folder;
  folder.Write("model.safetensors.partial", std::string(5000, 'x'));
  const std::vector<SafetensorsLayout::Tensor> tensors = {{"a", {2}}};
  const SafetensorsLayout layout(tensors);
  ASSERT_TRUE(SafetensorsWriter::Create(folder / "model.safetensors", layout).ok());
  ASSERT_TRUE(SafetensorsWriter::Commit(folder / "model.safetensors").ok());
  EXPECT_THAT(ReadFloats(SafetensorsReader::Open(folder.str()).value(), "a", 0, 2), ElementsAre(0, 0));
}

TEST(SafetensorsWriter, ReplacesALinkInsteadOfItsTarget) {
  const TempFolder folder;
  folder.Write("victim", "old");
  std::filesystem::create_symlink(folder / "victim", folder / "model.safetensors.partial");
  const std::vector<SafetensorsLayout::Tensor> tensors = {{"a", {2}}};
  ASSERT_TRUE(SafetensorsWriter::Create(folder / "model.safetensors", SafetensorsLayout(tensors)).ok());
  EXPECT_EQ(ReadFile(folder / "victim"), "old");
}

TEST(SafetensorsWriter, NamesAPathThatCannotBeWritten) {
  const TempFolder folder;
  folder.Write("file", "");
  const std::vector<SafetensorsLayout::Tensor> tensors = {{"a", {2}}};
  const absl::Status status =
      SafetensorsWriter::Create(folder / "file/model.safetensors", SafetensorsLayout(tensors));
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot write"));
}

}  // namespace
}  // namespace weft
