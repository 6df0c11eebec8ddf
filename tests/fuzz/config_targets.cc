#include <string>
#include <variant>

#include <absl/strings/str_format.h>

#include "src/cli/command_line.h"
#include "src/cli/toml_reader.h"
#include "src/train/checkpoint/manifest.h"
#include "tests/fuzz/targets.h"
#include "tests/fuzz/temp_input.h"
#include "weft/core/hash.h"
#include "weft/core/status.h"
#include "weft/train/diagnose.h"
#include "weft/train/hf_config.h"
#include "weft/train/peft_adapter.h"

namespace weft {
namespace {

constexpr size_t kMaxText = 1 << 20;  // Upper limit of config.json.

}  // namespace

int FuzzHfConfig(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto indexers = ParseIndexerConfig(text, "indexer_config.json"); indexers.ok()) {
    const auto again = ParseIndexerConfig(FormatIndexerConfig(*indexers), "indexer_config.json");
    WEFT_CHECK(again.ok() && *again == *indexers, "the exported description of indexers is another one");
  }
  if (const auto adapter = ParsePeftAdapter(text, "adapter_config.json"); adapter.ok()) {
    const std::string exported = FormatPeftAdapter(adapter->lora, "", text);
    const auto again = ParsePeftAdapter(exported, "adapter_config.json");
    WEFT_CHECK(exported.size() > kMaxText ||
                   (again.ok() && again->lora.scaling() == adapter->lora.scaling() &&
                    again->lora.rank == adapter->lora.rank && again->lora.targets == adapter->lora.targets),
               "the exported description of adapters is another one");
  }
  const auto config = ParseHfConfig(text, "config.json");
  if (!config.ok()) return 0;
  WEFT_CHECK(config->ParameterCount() > 0, "the number of parameters overflows");
  const std::string exported = FormatHfConfig(*config, text);
  if (exported.size() > kMaxText) return 0;
  const auto again = ParseHfConfig(exported, "config.json");
  WEFT_CHECK(again.ok() && again->ParameterCount() == config->ParameterCount() &&
                 again->rope_theta == config->rope_theta && again->norm_eps == config->norm_eps,
             "the exported configuration is another one");
  return 0;
}

int FuzzFlightRecord(const uint8_t* data, size_t size) {
  const auto record = ParseFlightRecord({reinterpret_cast<const char*>(data), size}, "rank-0.json");
  if (!record.ok()) return 0;
  FlightRecord peer = *record;
  peer.rank = (record->rank + 1) % record->ranks;
  const FlightRecord records[] = {*record, peer};
  const auto diagnosis = Diagnose(absl::MakeConstSpan(records).first(record->ranks == 1 ? 1 : 2));
  WEFT_CHECK(diagnosis.ok() && !diagnosis->empty(), "there is no diagnosis");
  return 0;
}

int FuzzCheckpointManifest(const uint8_t* data, size_t size) {
  // Appends a valid checksum, so that the parser reaches the code after its check.
  std::string text(reinterpret_cast<const char*>(data), size);
  absl::StrAppendFormat(&text, ",\n\"checksum\": \"%016x\"}\n", Hash64(text));
  const auto manifest = ParseManifest(text, "checkpoint.json");
  if (!manifest.ok()) return 0;
  const std::string formatted = FormatManifest(*manifest);
  const auto again = ParseManifest(formatted, "checkpoint.json");
  WEFT_CHECK(again.ok() && FormatManifest(*again) == formatted, "the formatted manifest is another one");
  return 0;
}

int FuzzToml(const uint8_t* data, size_t size) {
  // Setting up the flags takes most of the time, so a text that ReadToml refuses ends here.
  const auto items = ReadToml({reinterpret_cast<const char*>(data), size});
  if (!items.ok()) return 0;
  const TempInput file(".toml", data, size);
  const auto command = ParseCommandLine({"train", "--config", file.path()});
  WEFT_CHECK(!command.ok() || std::holds_alternative<TrainConfig>(*command), "the file is no run");
  return 0;
}

}  // namespace weft
