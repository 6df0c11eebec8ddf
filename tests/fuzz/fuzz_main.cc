// Entry point of libFuzzer. The build defines WEFT_FUZZ_TARGET as the function of one target.
#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return weft::WEFT_FUZZ_TARGET(data, size);
}
