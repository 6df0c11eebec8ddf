// Entry points of the fuzzers: each reads the bytes of a file, of a slice, or of messages of another rank as
// the program does, and aborts if a result is wrong.
//
// libFuzzer calls them with generated inputs (tools/fuzz.sh), and fuzz_replay_test with the seeds in
// corpus/<name>. A new target needs a function here, an entry in CMakeLists.txt and in replay_test.cc, and
// seeds.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft {

// A safetensors file without its length field: the header, and the data that it describes.
int FuzzSafetensorsHeader(const uint8_t* data, size_t size);
// The text of model.safetensors.index.json.
int FuzzSafetensorsIndex(const uint8_t* data, size_t size);
// The text of config.json, which is also exported and read again, of indexer_config.json, and of
// adapter_config.json.
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

// Messages of other ranks to an engine that sends, receives and reduces. Steps, each with a byte for its kind
// and two for the number of its bytes: a control message, a signal of a rank of the node, or an operation.
int FuzzControlMessages(const uint8_t* data, size_t size);
// The bytes of a connection of a link over TCP. The first byte selects whether a valid greeting comes before
// them, and the second how many are written at once.
int FuzzTcpFrames(const uint8_t* data, size_t size);

}  // namespace weft
