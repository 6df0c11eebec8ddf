// Replays the seeds of the fuzzers, each also truncated at every byte and with random bits flipped.
#include <algorithm>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/fuzz/targets.h"
#include "tests/support/temp_folder.h"

namespace weft {
namespace {

constexpr int kFlips = 200;
constexpr size_t kMaxTruncations = 1000;

struct Target {
  const char* corpus;
  int (*run)(const uint8_t* data, size_t size);
};

class FuzzReplay : public ::testing::TestWithParam<Target> {
 protected:
  static void Run(const std::string& input) {
    // A copy of the exact size: AddressSanitizer sees a read behind its end.
    const std::vector<uint8_t> bytes(input.begin(), input.end());
    GetParam().run(bytes.data(), bytes.size());
  }
  static std::vector<std::string> Seeds() {
    std::vector<std::string> seeds;
    const std::string folder = std::string(WEFT_FUZZ_CORPUS "/") + GetParam().corpus;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      seeds.push_back(ReadFile(entry.path()));
    std::sort(seeds.begin(), seeds.end());
    return seeds;
  }
};

TEST_P(FuzzReplay, ReadsEverySeed) {
  const std::vector<std::string> seeds = Seeds();
  EXPECT_FALSE(seeds.empty());
  for (const std::string& seed : seeds) Run(seed);
}

TEST_P(FuzzReplay, SurvivesTruncationAtEveryByte) {
  for (const std::string& seed : Seeds()) {
    const size_t step = 1 + seed.size() / kMaxTruncations;
    for (size_t bytes = 0; bytes < seed.size(); bytes += step) Run(seed.substr(0, bytes));
  }
}

TEST_P(FuzzReplay, SurvivesFlippedBits) {
  std::mt19937 random(1);
  for (const std::string& seed : Seeds()) {
    for (int flip = 0; flip < kFlips && !seed.empty(); ++flip) {
      std::string bad = seed;
      char& byte = bad[random() % bad.size()];
      byte = static_cast<char>(byte ^ (1 << (random() % 8)));
      Run(bad);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Targets, FuzzReplay,
    ::testing::Values(Target{"safetensors_header", FuzzSafetensorsHeader},
                      Target{"safetensors_index", FuzzSafetensorsIndex}, Target{"hf_config", FuzzHfConfig},
                      Target{"flight_record", FuzzFlightRecord},
                      Target{"checkpoint_manifest", FuzzCheckpointManifest}, Target{"toml", FuzzToml},
                      Target{"tokens", FuzzTokens}, Target{"compressed_slice", FuzzCompressedSlice},
                      Target{"delta", FuzzDelta}, Target{"control_messages", FuzzControlMessages},
                      Target{"tcp_frames", FuzzTcpFrames}),
    [](const auto& tested) { return std::string(tested.param.corpus); });

}  // namespace
}  // namespace weft
