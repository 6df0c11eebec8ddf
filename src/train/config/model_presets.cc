#include "weft/train/model_presets.h"

#include <algorithm>
#include <array>

#include "weft/core/rounding.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr int64_t kByteVocabulary = 256;
constexpr int64_t kFfnMultiple = 64;

struct Preset {
  const char* name;
  int64_t layers;
  int64_t dim;
  int64_t heads;
  int64_t kv_heads;
  int64_t ffn_dim;
};

constexpr std::array<Preset, 3> kPresets = {
    {{"tiny", 4, 128, 4, 2, 384}, {"small", 8, 512, 8, 4, 1408}, {"medium", 12, 1024, 16, 4, 2816}}};

const Preset& FindPreset(const std::string& name) {
  for (const Preset& preset : kPresets) {
    if (preset.name == name) {
      return preset;
    }
  }
  CheckFailed(__FILE__, __LINE__, "preset", "no preset has this name");
}

int64_t DefaultFfnDim(int64_t dim) {
  const int64_t wanted = (8 * dim + 2) / 3;
  return RoundUp(wanted, kFfnMultiple);
}

}  // namespace

std::vector<std::string> PresetNames() {
  std::vector<std::string> names;
  names.reserve(kPresets.size());
  for (const Preset& preset : kPresets) {
    names.emplace_back(preset.name);
  }
  return names;
}

LlamaConfig MakeLlamaConfig(const ModelOptions& options, int64_t seq_len) {
  LlamaConfig config;
  config.vocab_size = options.vocab_size.value_or(kByteVocabulary);
  if (options.layers.has_value()) {
    config.layers = *options.layers;
    config.dim = *options.dim;
    config.heads = *options.heads;
    config.kv_heads = options.kv_heads.value_or(config.heads);
    config.ffn_dim = options.ffn_dim.value_or(DefaultFfnDim(config.dim));
  } else {
    const Preset& preset = FindPreset(options.preset.empty() ? kPresets.front().name : options.preset);
    config.layers = preset.layers;
    config.dim = preset.dim;
    config.heads = preset.heads;
    config.kv_heads = preset.kv_heads;
    config.ffn_dim = preset.ffn_dim;
  }
  config.head_dim = config.dim / config.heads;
  config.max_positions = std::max(config.max_positions, seq_len);
  return config;
}

}  // namespace weft
