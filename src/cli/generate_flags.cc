#include "src/cli/generate_flags.h"

#include "src/cli/flag_group.h"
#include "src/cli/train_flags.h"

namespace weft {

void AddGenerateFlags(CLI::App& app, GenerateConfig& config) {
  FlagGroup input(app, "Model and prompt");
  input.Text("--hf-model", config.hf_folder, "Hugging Face folder: config.json and safetensors", "DIR");
  input.Text("--lora-adapter", config.lora_adapter, "PEFT folder with LoRA adapters of the model", "DIR");
  input.Text("--prompt", config.prompt, "Prompt, for a model whose tokens are bytes; see tools/generate.py",
             "TEXT");
  input.Text("--prompt-tokens", config.prompt_tokens, "Prompt as token ids, such as 1,2,3", "IDS");
  input.Text("--prompt-tokens-file", config.prompt_tokens_file,
             "File of a prompt's token ids, with commas or white space between them; -: standard input",
             "FILE");
  FlagGroup choice(app, "Choice of tokens");
  choice.Number("--max-new-tokens", config.max_new_tokens, "Most tokens to generate");
  choice.Number("--temperature", config.sampling.temperature,
                "Divisor of the logits; 0: always the most likely token");
  choice.Number("--top-k", config.sampling.top_k, "Sample from the N most likely tokens [all]");
  choice.Number("--top-p", config.sampling.top_p,
                "Sample from the fewest tokens whose probabilities reach N, in (0, 1] [1]");
  choice.Number("--seed", config.sampling.seed, "Seed of the samples [0]");
  FlagGroup output(app, "Output");
  output.Switch("--print-tokens", config.print_tokens, "Print token ids, one a line, in place of text");
  FlagGroup sharding(app, "Sharding (over all ranks)");
  AddGatherFlags(sharding, config.parallel);
}

}  // namespace weft
