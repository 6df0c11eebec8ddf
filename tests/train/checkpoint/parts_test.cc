// Pure parts of checkpoints: ranges of files, the layout of files, and checkpoint.json.
#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/train/checkpoint/checkpoint_layout.h"
#include "src/train/checkpoint/file_range.h"
#include "src/train/checkpoint/manifest.h"
#include "src/train/checkpoint/range_cache.h"
#include "tests/support/status_matchers.h"
#include "weft/core/hash.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::StatusIs;

constexpr int64_t kElementBytes = sizeof(float);

// The offsets in the file of a piece's elements, in their order in memory.
std::vector<int64_t> ElementOffsets(const ShardPiece& piece, int64_t offset) {
  std::vector<int64_t> offsets;
  for (int64_t run = 0; run < piece.runs; ++run) {
    for (int64_t i = 0; i < piece.run_length; ++i) {
      offsets.push_back(offset + (piece.start + run * piece.run_stride + i) * kElementBytes);
    }
  }
  return offsets;
}

// The offsets in the file of the elements of ranges, in their order in memory.
std::vector<int64_t> ElementOffsets(const std::vector<FileRange>& ranges) {
  std::vector<int64_t> offsets;
  for (const FileRange& range : ranges) {
    for (int64_t run = 0; run < range.runs; ++run) {
      for (int64_t byte = 0; byte < range.run_bytes; byte += kElementBytes) {
        offsets.push_back(range.offset + run * range.stride + byte);
      }
    }
  }
  return offsets;
}

TEST(CutIntoRanges, KeepsTheOrderOfElementsAndBoundsEveryRange) {
  const int64_t most = kMaxRangeSpan / kElementBytes;
  const ShardPiece pieces[] = {
      {0, 0, 0, 1, 1, 0},
      {0, 0, 5, 1, 7, 0},
      {0, 0, 3, 1, 3 * most + 11, 0},
      {0, 0, 2, 5, 3, 10},
      {0, 0, 0, 1000, 40, most / 10},
      {0, 0, 0, 3, most + 5, 2 * most},
      {0, 0, 7, 4, most - 1, most},
  };
  for (const ShardPiece& piece : pieces) {
    const std::vector<FileRange> ranges = CutIntoRanges(piece, 64);
    EXPECT_EQ(ElementOffsets(ranges), ElementOffsets(piece, 64));
    for (const FileRange& range : ranges) EXPECT_LE(range.span(), kMaxRangeSpan);
  }
}

TEST(CutIntoRanges, GivesNothingForAnEmptyPiece) {
  EXPECT_TRUE(CutIntoRanges({0, 0, 0, 1, 0, 0}, 64).empty());
  EXPECT_TRUE(CutIntoRanges({0, 0, 0, 0, 5, 10}, 64).empty());
}

TEST(ForEachOverlap, VisitsExactlyTheBytesOfBoth) {
  const FileRange ranges[] = {{.offset = 10, .run_bytes = 8},
                              {.offset = 10, .run_bytes = 4, .runs = 5, .stride = 7}};
  for (const FileRange& range : ranges) {
    std::vector<int64_t> bytes;  // Offsets in the file, in the order of the range.
    for (int64_t run = 0; run < range.runs; ++run) {
      for (int64_t i = 0; i < range.run_bytes; ++i) bytes.push_back(range.offset + run * range.stride + i);
    }
    for (int64_t begin = 0; begin < 50; ++begin) {
      for (int64_t end = begin; end < 50; ++end) {
        std::vector<int64_t> visited;
        ForEachOverlap(range, begin, end, [&](int64_t at, int64_t from, int64_t count) {
          for (int64_t i = 0; i < count; ++i) {
            EXPECT_EQ(bytes[static_cast<size_t>(from + i)], at + i);
            visited.push_back(at + i);
          }
        });
        std::vector<int64_t> expected;
        for (const int64_t byte : bytes) {
          if (byte >= begin && byte < end) expected.push_back(byte);
        }
        EXPECT_EQ(visited, expected);
      }
    }
  }
}

TEST(CheckCoverage, AcceptsAnyPartitionOfAFile) {
  EXPECT_OK(CheckCoverage({}, 0));
  EXPECT_OK(CheckCoverage({{.offset = 4, .run_bytes = 6}, {.offset = 0, .run_bytes = 4}}, 10));
  EXPECT_OK(CheckCoverage({{.offset = 0, .run_bytes = 2, .runs = 3, .stride = 4},
                           {.offset = 2, .run_bytes = 2, .runs = 3, .stride = 4}},
                          12));
}

TEST(CheckCoverage, NamesMissingAndDoubleBytes) {
  EXPECT_THAT(CheckCoverage({{.offset = 0, .run_bytes = 4}}, 5),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("byte 4")));
  EXPECT_THAT(CheckCoverage({{.offset = 1, .run_bytes = 4}}, 5),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("byte 0")));
  EXPECT_THAT(CheckCoverage({{.offset = 0, .run_bytes = 3}, {.offset = 2, .run_bytes = 2}}, 5),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("byte 2")));
}

TEST(CheckCoverage, RefusesRangesThatNoFileHas) {
  constexpr int64_t kHuge = INT64_MAX;
  const FileRange impossible[] = {
      {.offset = -1, .run_bytes = 4},
      {.offset = 0, .run_bytes = 0},
      {.offset = 0, .run_bytes = -4},
      {.offset = kHuge, .run_bytes = 4},
      {.offset = 4, .run_bytes = kHuge},
      {.offset = 0, .run_bytes = 4, .runs = 0, .stride = 8},
      {.offset = 0, .run_bytes = 4, .runs = 2, .stride = 2},
      {.offset = 0, .run_bytes = 4, .runs = kHuge, .stride = kHuge},
      {.offset = 0, .run_bytes = 4, .runs = 1 << 20, .stride = 8},
      {.offset = 0, .run_bytes = 4, .runs = 1, .stride = 8},
  };
  for (const FileRange& range : impossible) {
    EXPECT_FALSE(CheckCoverage({range}, 64).ok())
        << range.offset << " " << range.run_bytes << " " << range.runs;
  }
}

TEST(CheckpointLayout, FillsFilesUpToTheirLimitAndIndexesThem) {
  std::vector<CheckpointLayout::Tensor> tensors;
  for (int i = 0; i < 5; ++i) tensors.push_back({"model", absl::StrCat("t", i), {10, 10}});
  tensors.push_back({"optimizer", "t0", {10}});
  ASSERT_OK_AND_ASSIGN(const CheckpointLayout layout, CheckpointLayout::Make(tensors, 1000));
  std::vector<std::string> names;
  for (const auto& file : layout.files()) names.push_back(file.name);
  EXPECT_THAT(names,
              ::testing::ElementsAre("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                     "model-00003-of-00003.safetensors", "optimizer.safetensors"));
  ASSERT_EQ(layout.indexes().size(), 1);
  EXPECT_THAT(layout.indexes().at("model.safetensors.index.json"),
              HasSubstr("\"t4\": \"model-00003-of-00003.safetensors\""));
  EXPECT_EQ(layout.Find("model", "t3", 7).offset, layout.Find("model", "t2", 107).offset);
  EXPECT_EQ(layout.Find("model", "t3", 0).file, 1);
}

TEST(CheckpointLayout, RefusesTwoArraysOfOneNameAndOddStems) {
  const CheckpointLayout::Tensor tensor{"model", "a", {2}};
  EXPECT_THAT(CheckpointLayout::Make({tensor, tensor}, 100).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("two arrays named 'a'")));
  for (const char* stem : {"", "../model", "a/b", "Model", "a.b"}) {
    EXPECT_THAT(CheckpointLayout::Make({{stem, "a", {2}}}, 100).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, ::testing::_));
  }
}

TEST(CheckpointLayout, RefusesTensorsThatSafetensorsReadersRefuse) {
  const auto expect_refused = [](const std::vector<CheckpointLayout::Tensor>& tensors,
                                 const std::string& message) {
    EXPECT_THAT(CheckpointLayout::Make(tensors, 100).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  EXPECT_OK(CheckpointLayout::Make({{"model", "deep", Shape(16, 1)}}, 100).status());
  expect_refused({{"model", "deep", Shape(17, 1)}},
                 "the tensor 'deep' in 'model' has 17 dims, but at most 16 are allowed");

  EXPECT_OK(CheckpointLayout::Make({{"model", std::string(1'000'000, 'x'), {1}}}, 100).status());
  expect_refused({{"model", std::string(1'000'001, 'x'), {1}}},
                 "…' in 'model' has a name of 1000001 bytes as JSON, but at most 1000000 are allowed");
  // As JSON each of these has two bytes.
  expect_refused({{"model", std::string(500'001, '"'), {1}}}, "a name of 1000002 bytes as JSON");

  std::vector<CheckpointLayout::Tensor> many(200'001, {"model", "", {0}});
  for (size_t i = 0; i < many.size(); ++i) many[i].name = absl::StrCat("t", i);
  expect_refused(many, "'model.safetensors' would have 200001 tensors, but at most 200000 are allowed");
}

CheckpointManifest SomeManifest() {
  CheckpointManifest manifest;
  manifest.step = 123;
  manifest.counts = {{"skipped_steps", 2}};
  manifest.counts_of_parameters = {{"a.weight", 7}};
  manifest.properties = {{"--lr", "0.1"}, {"name", "with \"quotes\" and\nlines"}};
  manifest.files["model.safetensors"] = {"model",
                                         10,
                                         {{.offset = 0, .run_bytes = 4, .hash = 0xFFFFFFFFFFFFFFFF},
                                          {.offset = 4, .run_bytes = 2, .runs = 2, .stride = 4, .hash = 5},
                                          {.offset = 6, .run_bytes = 2, .hash = 0}}};
  manifest.files["config.json"] = {"", 2, {{.offset = 0, .run_bytes = 2, .hash = 1}}};
  return manifest;
}

TEST(Manifest, ReadsWhatItWrote) {
  const std::string text = FormatManifest(SomeManifest());
  ASSERT_OK_AND_ASSIGN(const CheckpointManifest read, ParseManifest(text, "checkpoint.json"));
  EXPECT_EQ(FormatManifest(read), text);
  EXPECT_EQ(read.step, 123);
  EXPECT_EQ(read.files.at("model.safetensors").ranges[1].stride, 4);
  EXPECT_EQ(read.files.at("model.safetensors").ranges[0].hash, 0xFFFFFFFFFFFFFFFF);
}

TEST(Manifest, DetectsEveryFlippedBitAndEveryTruncation) {
  const std::string text = FormatManifest(SomeManifest());
  for (size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string damaged = text;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    // The case of a hexadecimal digit has no meaning.
    if (absl::EqualsIgnoreCase(damaged, text)) continue;
    EXPECT_THAT(ParseManifest(damaged, "checkpoint.json").status(),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("checkpoint.json")))
        << bit;
  }
  for (size_t bytes = 0; bytes < text.size(); ++bytes) {
    EXPECT_THAT(ParseManifest(text.substr(0, bytes), "checkpoint.json").status(),
                StatusIs(absl::StatusCode::kDataLoss, ::testing::_));
  }
}

// The text with its hash recomputed.
std::string Rehashed(const std::string& text, const std::string& from, const std::string& to) {
  std::string changed = text;
  const size_t at = changed.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  changed.replace(at, from.size(), to);
  const std::string key = ",\n\"checksum\": \"";
  const std::string body = changed.substr(0, changed.rfind(key));
  return absl::StrCat(body, key, absl::StrFormat("%016x", Hash64(body)), "\"}\n");
}

TEST(Manifest, RefusesWrongValuesWithAValidChecksum) {
  const std::string text = FormatManifest(SomeManifest());
  EXPECT_THAT(ParseManifest(Rehashed(text, "\"format\":1", "\"format\":2"), "c").status(),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("format 2")));
  // A newer version may have other files.
  const std::string newer = Rehashed(text, "\"format\":1", "\"format\":2");
  EXPECT_THAT(ParseManifest(Rehashed(newer, "\"config.json\"", "\"a/b\""), "c").status(),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("format 2")));
  EXPECT_THAT(ParseManifest(Rehashed(text, "\"step\":123", "\"step\":-1"), "c").status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("step is -1")));
  EXPECT_THAT(ParseManifest(Rehashed(text, "\"step\":123", "\"step\":\"x\""), "c").status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("step")));
  EXPECT_THAT(ParseManifest(Rehashed(text, "\"config.json\"", "\"../config.json\""), "c").status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("not in the checkpoint's folder")));
  EXPECT_THAT(ParseManifest(Rehashed(text, "[6,2,", "[6,1,"), "c").status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("wrong ranges for 'model.safetensors'")));
  EXPECT_THAT(ParseManifest(Rehashed(text, "[6,2,", "[[],2,"), "c").status(),
              StatusIs(absl::StatusCode::kDataLoss, ::testing::_));
}

TEST(RangeCache, KeepsTheRangesThatWereUsedLast) {
  RangeCache cache;
  const auto bytes = [](char value) { return std::make_shared<const std::vector<char>>(30 << 20, value); };
  cache.Insert({0, 0}, bytes('a'));
  cache.Insert({0, 1}, bytes('b'));
  ASSERT_NE(cache.Find({0, 0}), nullptr);
  cache.Insert({1, 0}, bytes('c'));
  EXPECT_EQ(cache.Find({0, 1}), nullptr);
  EXPECT_EQ(cache.Find({0, 0})->front(), 'a');
  EXPECT_EQ(cache.Find({1, 0})->front(), 'c');
}

}  // namespace
}  // namespace weft
