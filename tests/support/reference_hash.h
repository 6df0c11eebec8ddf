// Pseudorandom words by name, as in tools/reference: the weights and tokens of models that references
// describe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace weft {

// `count` words of the integer hash of tools/reference/llama_reference.py.
inline std::vector<uint32_t> Hashed(const std::string& name, int64_t count) {
  uint32_t key = 2166136261U;
  for (const char byte : name) key = (key ^ static_cast<uint8_t>(byte)) * 16777619U;
  std::vector<uint32_t> words(static_cast<size_t>(count));
  for (size_t i = 0; i < words.size(); ++i) {
    uint32_t word = key + static_cast<uint32_t>(i) * 2654435761U;
    word = (word ^ (word >> 16)) * 0x7FEB352DU;
    word = (word ^ (word >> 15)) * 0x846CA68BU;
    words[i] = word ^ (word >> 16);
  }
  return words;
}

}  // namespace weft
