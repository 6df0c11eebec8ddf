// Entry points of the fuzzers: each reads bytes from outside as the program does, and aborts where a result
// is wrong.
//
// libFuzzer calls them with inputs that it makes up (tools/fuzz.sh), the test fuzz_replay_test with the files
// of corpus/<name>. A new target is a function here and a line in CMakeLists.txt.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft {

// The header of a safetensors file, with the data that it describes behind it.
int FuzzSafetensorsHeader(const uint8_t* data, size_t size);
// The text of model.safetensors.index.json.
int FuzzSafetensorsIndex(const uint8_t* data, size_t size);
// The text of config.json, also as the source of an exported one, and of indexer_config.json.
int FuzzHfConfig(const uint8_t* data, size_t size);
// A flight recorder.
int FuzzFlightRecord(const uint8_t* data, size_t size);
// The text of checkpoint.json up to its checksum.
int FuzzCheckpointManifest(const uint8_t* data, size_t size);
// The file of --config.
int FuzzToml(const uint8_t* data, size_t size);
// A data file. The first byte selects its format and the vocabulary.
int FuzzTokens(const uint8_t* data, size_t size);
// A compressed slice. The first two bytes select the dtype and the number of elements.
int FuzzCompressedSlice(const uint8_t* data, size_t size);
// A delta-encoded slice. The first two bytes select the number of elements.
int FuzzDelta(const uint8_t* data, size_t size);

}  // namespace weft
