#include "weft/train/hf_weights.h"

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "src/train/files/model_folder.h"
#include "src/train/files/shard_runs.h"
#include "src/train/files/transposed_runs.h"
#include "src/train/output/export_hf.h"
#include "weft/core/status.h"
#include "weft/train/hf_config.h"
#include "weft/train/safetensors.h"

namespace weft {
namespace {

StoredTensor TensorOf(const StoredAs& stored, const Parameter& parameter) {
  return stored ? stored(parameter) : StoredTensor{parameter.name};
}

// The shape in the file. Errors: kInvalidArgument (a transposed parameter without two dims).
absl::StatusOr<Shape> StoredShape(const StoredTensor& tensor, const Parameter& parameter) {
  if (!tensor.transposed) return parameter.shape;
  if (parameter.shape.size() == 2) return Shape{parameter.shape[1], parameter.shape[0]};
  return absl::InvalidArgumentError(absl::StrCat("parameter '", parameter.name, "' of shape ",
                                                 ToString(parameter.shape),
                                                 " is to be stored transposed, but has not two dims"));
}

absl::Status ReadTransposed(const SafetensorsReader& reader, const std::string& name,
                            const Parameter& parameter, int64_t start, int64_t count, float* out) {
  std::vector<float> values;
  return ForEachTransposedRun(parameter.shape[0], parameter.shape[1], start, count,
                              [&](const TransposedRun& run) -> absl::Status {
                                values.resize(static_cast<size_t>(run.count));
                                WEFT_RETURN_IF_ERROR(reader.Read(name, run.first, absl::MakeSpan(values)));
                                for (int64_t i = 0; i < run.count; ++i)
                                  out[run.from + i * run.stride] = values[static_cast<size_t>(i)];
                                return absl::OkStatus();
                              });
}

absl::Status WriteTransposed(SafetensorsWriter& writer, const std::string& name, const Parameter& parameter,
                             int64_t start, absl::Span<const float> elements) {
  std::vector<float> values;
  return ForEachTransposedRun(parameter.shape[0], parameter.shape[1], start,
                              static_cast<int64_t>(elements.size()), [&](const TransposedRun& run) {
                                values.clear();
                                for (int64_t i = 0; i < run.count; ++i)
                                  values.push_back(elements[static_cast<size_t>(run.from + i * run.stride)]);
                                return writer.Write(name, run.first, values);
                              });
}

absl::StatusOr<SafetensorsLayout> LayoutOf(Module& model, const StoredAs& stored) {
  std::set<std::string> names;
  std::vector<SafetensorsLayout::Tensor> tensors;
  for (const std::shared_ptr<Parameter>& parameter : model.AllParameters()) {
    const StoredTensor tensor = TensorOf(stored, *parameter);
    WEFT_ASSIGN_OR_RETURN(Shape shape, StoredShape(tensor, *parameter));
    if (!names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(absl::StrCat("two parameters are to be stored as '", tensor.name,
                                                     "': give each a tensor of its own"));
    }
    tensors.push_back({tensor.name, std::move(shape)});
  }
  return SafetensorsLayout(tensors);
}

// The export on rank 0. Errors: those of ExportToHf.
absl::StatusOr<HfExport> Open(const std::string& folder, const std::string& source,
                              const SafetensorsLayout& layout) {
  WEFT_RETURN_IF_ERROR(CheckHasNoAdapters(folder));
  std::map<std::string, std::string> files;
  if (!source.empty()) {
    std::error_code error;
    if (std::filesystem::equivalent(folder, source, error)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", folder, "' is the source of the export: name another folder"));
    }
    WEFT_ASSIGN_OR_RETURN(const std::string config, ReadHfConfigText(source));
    WEFT_ASSIGN_OR_RETURN(files[kConfigFile],
                          SetHfDtype(config, absl::StrCat(source, "/", kConfigFile), DType::kF32));
    WEFT_ASSIGN_OR_RETURN(std::vector<ModelCompanion> companions, ReadCompanions(source));
    for (ModelCompanion& companion : companions) files[companion.name] = std::move(companion.content);
  }
  return ClaimExport(folder, source, ExportedWeights::kModel, {{kWeightsFile, layout}}, std::move(files));
}

absl::Status Write(const std::string& staging, const SafetensorsLayout& layout, const StoredAs& stored,
                   const std::vector<ShardView>& shards) {
  WEFT_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                        SafetensorsWriter::Open(absl::StrCat(staging, "/", kWeightsFile), layout));
  for (const ShardView& shard : shards) {
    const StoredTensor tensor = TensorOf(stored, *shard.parameter);
    WEFT_RETURN_IF_ERROR(ForEachRun(shard, [&](int64_t first, absl::Span<const float> values) {
      return tensor.transposed ? WriteTransposed(writer, tensor.name, *shard.parameter, first, values)
                               : writer.Write(tensor.name, first, values);
    }));
  }
  return writer.Close();
}

}  // namespace

ShardLoader LoadFromHf(const std::string& folder, StoredAs stored) {
  const auto reader = std::make_shared<absl::StatusOr<SafetensorsReader>>(SafetensorsReader::Open(folder));
  return [reader, stored = std::move(stored)](const Parameter& parameter, int64_t start, int64_t count,
                                              float* out) -> absl::Status {
    WEFT_RETURN_IF_ERROR(reader->status());
    const StoredTensor tensor = TensorOf(stored, parameter);
    WEFT_ASSIGN_OR_RETURN(const Shape shape, StoredShape(tensor, parameter));
    WEFT_RETURN_IF_ERROR((*reader)->Check(tensor.name, shape));
    return tensor.transposed
               ? ReadTransposed(**reader, tensor.name, parameter, start, count, out)
               : (*reader)->Read(tensor.name, start, absl::MakeSpan(out, static_cast<size_t>(count)));
  };
}

absl::Status ExportToHf(Bootstrap& bootstrap, ShardedModel& model, const std::string& folder,
                        const HfExportOptions& options) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<ShardView> shards, model.CurrentShards());
  WEFT_ASSIGN_OR_RETURN(const SafetensorsLayout layout, LayoutOf(model.root(), options.stored));
  const absl::StatusOr<absl::Duration> timeout = TimeoutOrDefault(options.timeout);
  absl::StatusOr<HfExport> opened = HfExport();
  if (!timeout.ok()) {
    opened = timeout.status();
  } else if (bootstrap.rank() == 0) {
    opened = Open(folder, options.source, layout);
  }
  absl::StatusOr<const HfExport*> target = nullptr;
  if (opened.ok()) target = &*opened;
  if (!opened.ok()) target = opened.status();
  return WriteExport(
      bootstrap, target, {{kWeightsFile, layout}},
      [&](const std::string& staging) {
        return options.replica == 0 ? Write(staging, layout, options.stored, shards) : absl::OkStatus();
      },
      timeout.value_or(kFallbackTimeout));
}

}  // namespace weft
