// Weights of any model in a Hugging Face folder: a loader for FullyShard, and an export of a sharded model.
// (`weft train` has its own for the architectures of weft/train/hf_config.h.)
//
//   const StoredAs stored = [](const Parameter& parameter) -> StoredTensor {
//     return {parameter.name, /*transposed=*/absl::EndsWith(parameter.name, ".c_attn.weight")};
//   };
//   WEFT_ASSIGN_OR_RETURN(auto model, FullyShard(net, blocks, mesh, engine, {}, LoadFromHf("gpt2", stored)));
//   ...
//   WEFT_RETURN_IF_ERROR(ExportToHf(ranks, *model, "tuned", {.source = "gpt2", .stored = stored}));
#pragma once

#include <functional>
#include <optional>
#include <string>

#include <absl/status/status.h>
#include <absl/time/time.h>

#include "weft/mesh/bootstrap.h"
#include "weft/sharding/fully_shard.h"
#include "weft/sharding/shard_view.h"

namespace weft {

// The tensor of a safetensors file that holds a parameter.
struct StoredTensor {
  std::string name;
  // A weight [out, in] is stored as [in, out], as those of transformers' Conv1D are. REQUIRES: two dims.
  bool transposed = false;
};
// The tensor of each parameter. Empty: each parameter is stored by its own name and as it is.
using StoredAs = std::function<StoredTensor(const Parameter&)>;

// Loader of the weights in a folder's safetensors files. Each rank reads its own elements. Tensors of the
// files that are no parameters are ignored.
// Errors of the loader: kNotFound (no weights in the folder, or no tensor for a parameter), kDataLoss (a
// damaged file, or a tensor of another shape), kPermissionDenied, kUnavailable.
ShardLoader LoadFromHf(const std::string& folder, StoredAs stored = {});

struct HfExportOptions {
  // Folder of the model that was trained: its config.json, tokenizer and generation files are copied. The
  // copy of config.json has float32 as its `dtype`, in place of the source's. Empty: the export has weights
  // alone.
  std::string source;
  StoredAs stored;
  // This rank's index among the ranks that hold the same elements, such as its coordinate on the mesh's axis
  // `replicate`. Only the first of them writes.
  int replica = 0;
  // Limit of each wait for other ranks. Unset: the environment's WEFT_TIMEOUT_S (DefaultTimeout).
  std::optional<absl::Duration> timeout = std::nullopt;
};

// Writes model.safetensors in f32, every rank its own elements, and the files of the source. All files become
// visible together and replace those of an earlier export; after an error the folder is as before. The folder
// must lie on a file system that all ranks share, and must be neither the source nor a checkpoint.
// Collective: all ranks, outside of passes. Errors, the same on all ranks: kInvalidArgument (two parameters
// with one tensor, a transposed parameter without two dims; the folder is the source or a checkpoint or has
// checkpoints, or another run exports there), kNotFound, kPermissionDenied, kResourceExhausted, kDataLoss
// (names the path).
absl::Status ExportToHf(Bootstrap& bootstrap, ShardedModel& model, const std::string& folder,
                        const HfExportOptions& options);

}  // namespace weft
