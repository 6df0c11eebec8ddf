// Generation of text with a model of a Hugging Face folder: the work of `weft generate`, for programs and
// tests with ranks of their own.
//
// The weights are sharded over all ranks. Each pass gathers one block after the other, as a forward of
// training does, so no rank needs memory for the whole model. The prompt is one pass; each new token is one
// more, with a KvCache of the tokens before it. Nothing is allocated for gradients. Rank 0 chooses the
// tokens.
//
// Collective: all ranks of the bootstrap, with the same configuration. All ranks return the same error,
//   except for a rank that waits past its deadline (kDeadlineExceeded).
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "weft/comm/comm_engine.h"
#include "weft/mesh/bootstrap.h"
#include "weft/train/config.h"

namespace weft {

// Choice of a token from logits, in the order of transformers: temperature, top-k, top-p.
struct SamplingOptions {
  double temperature = 0;  // Divisor of the logits. 0: the token with the largest logit (greedy).
  std::optional<int64_t> top_k = std::nullopt;  // Samples from the k most likely tokens only.
  // Samples from the fewest tokens whose probabilities reach p, in (0, 1].
  std::optional<double> top_p = std::nullopt;
  std::optional<uint64_t> seed = std::nullopt;  // Of the samples. Unset: 0.
};

// The values of `weft generate`'s flags. Exactly one of the three prompts is set.
struct GenerateConfig {
  std::string hf_folder;
  std::string lora_adapter;                  // PEFT folder with adapters of the model; empty: none.
  std::optional<std::string> prompt;         // Text. For a model whose tokens are bytes.
  std::optional<std::string> prompt_tokens;  // Token ids, "1,2,3".
  std::string prompt_tokens_file;            // Token ids in a file of rank 0. "-": its standard input.
  bool print_tokens = false;                 // Print token ids, one a line, rather than text.
  int64_t max_new_tokens = 128;
  SamplingOptions sampling;
  // Only the options of gathers and the dtype are used: node_shared, share_domain, reshard_after_forward,
  // prefetch_depth, wire_compression, param_dtype.
  ParallelOptions parallel;
};

// Checks everything that does not depend on ranks or files. Errors: kInvalidArgument (names the flag, its
// value and a remedy).
absl::Status Validate(const GenerateConfig& config);

struct GenerateEnvironment {
  // The streams to which rank 0 writes the new tokens or text, and messages. Null: nothing is written.
  std::FILE* output = nullptr;
  std::FILE* messages = nullptr;
  // The run overwrites timeout and share_domain.
  EngineOptions engine;
};

struct GenerateReport {
  std::vector<int32_t> tokens;  // The new tokens, with the one that ended the sequence.
  bool ended = false;           // True if the last of them ends the sequence.
  int64_t kv_cache_bytes = 0;
  int64_t peak_gradient_bytes = 0;  // Of node memory, since the start.
};

// REQUIRES: `config` has passed Validate.
// Errors:
//   kInvalidArgument: the prompt does not fit the model, or needs a tokenizer; ranks have different flags.
//   kNotFound, kPermissionDenied, kUnavailable, kDataLoss, kUnimplemented: a file of the folder or of the
//     prompt, which is named.
//   kOutOfRange: the logits are not finite.
//   kResourceExhausted: out of memory. kDeadlineExceeded, kAborted: a rank is missing, or failed.
absl::StatusOr<GenerateReport> Generate(Bootstrap& bootstrap, const GenerateConfig& config,
                                        const GenerateEnvironment& environment);

}  // namespace weft
