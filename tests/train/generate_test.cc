#include "weft/train/generate.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <sys/ioctl.h>
#include <thread>
#include <utility>
#include <vector>

#include "src/train/files/json.h"
#include "src/train/generate/prompt.h"
#include "src/train/generate/token_printer.h"
#include "tests/train/train_run.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::StatusIs;

// Returns the text that was written to `file`, and closes it.
std::string TextOf(std::FILE* file) {
  std::string text(static_cast<size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
  std::fclose(file);
  return text;
}

TEST(ReadTokenIds, ReadsIdsBetweenCommasAndWhiteSpace) {
  const TempFolder folder;
  EXPECT_EQ(ReadTokenIds(folder.Write("ids", "1, 2\n3\t4,5\r\n\n"), nullptr).value_or(""), "1,2,3,4,5");
  const auto error = [&](const std::string& text) {
    return ReadTokenIds(folder.Write("ids", text), nullptr).status();
  };
  EXPECT_THAT(error("1 x"), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("ids: 'x' is not a token id")));
  EXPECT_THAT(error(std::string(1 << 20, 'x')),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("ids: '" + std::string(40, 'x') + "...' is not a token id")));
  EXPECT_THAT(error(" \n"), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("ids: has no token ids")));
  EXPECT_THAT(ReadTokenIds(folder / "none", nullptr).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
}

// What ReadTokenIds returns for the standard input `descriptor`, and its messages.
std::pair<absl::StatusOr<std::string>, std::string> ReadStandardInputFrom(int descriptor) {
  const int original = dup(STDIN_FILENO);
  dup2(descriptor, STDIN_FILENO);
  std::FILE* messages = std::tmpfile();
  absl::StatusOr<std::string> ids = ReadTokenIds("-", messages);
  dup2(original, STDIN_FILENO);
  close(original);
  return {std::move(ids), TextOf(messages)};
}

TEST(ReadTokenIds, WaitsForAStandardInputThatDoesNotBlock) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_NONBLOCK | O_CLOEXEC), 0);
  constexpr int kIds = 200;  // The reader finds the pipe empty before most of them.
  std::atomic<bool> has_ended = false;
  std::thread writer([&] {
    for (int i = 0; i < kIds && !has_ended; ++i) {
      EXPECT_EQ(write(ends[1], "1 ", 2), 2);
      for (int left = 1; left > 0 && !has_ended;) ioctl(ends[1], FIONREAD, &left);
    }
    close(ends[1]);
  });
  const auto [ids, messages] = ReadStandardInputFrom(ends[0]);
  has_ended = true;
  writer.join();
  close(ends[0]);
  ASSERT_OK(ids);
  EXPECT_EQ(ids->size(), 2 * kIds - 1);
  EXPECT_EQ(messages, "");
}

TEST(ReadTokenIds, SaysThatItWaitsForATerminal) {
  const int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  ASSERT_EQ(grantpt(master) + unlockpt(master), 0);
  const int terminal = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
  ASSERT_EQ(write(master, "1 2\n\x04", 5), 5);  // Ctrl-D ends the input.
  const auto [ids, messages] = ReadStandardInputFrom(terminal);
  close(terminal);
  close(master);
  EXPECT_EQ(ids.value_or(""), "1,2");
  EXPECT_THAT(messages, HasSubstr("--prompt-tokens-file -: reads token ids from the terminal"));
}

// The output for tokens that are bytes.
std::string PrintedText(std::string_view bytes) {
  std::FILE* file = std::tmpfile();
  TokenPrinter printer(file, /*as_ids=*/false);
  for (const char byte : bytes) printer.Print(static_cast<unsigned char>(byte));
  printer.Finish();
  return TextOf(file);
}

TEST(TokenPrinter, EscapesControlCharacters) {
  EXPECT_EQ(PrintedText("a\nb \x1b[2J"), "a\nb \\x1b[2J\n");
  EXPECT_EQ(PrintedText("\xC2\x9B\x32J \xC2\xC2\x9B"), "\\x9b2J \xC2\\x9b\n");
}

TEST(TokenPrinter, KeepsAllOtherBytes) {
  for (const std::string text : {"ü€ \xC2\xA0 \xC2\xC2\xC3\x9B", "\xC2", ""}) {
    EXPECT_EQ(PrintedText(text), text + "\n");
  }
}

TEST(TokenPrinter, PrintsACharacterAtOnce) {
  std::FILE* file = std::tmpfile();
  TokenPrinter printer(file, /*as_ids=*/false);
  printer.Print('a');
  EXPECT_EQ(std::ftell(file), 1);
  printer.Print(0xC2);
  printer.Print(0xA0);
  EXPECT_EQ(std::ftell(file), 3);
  std::fclose(file);
}

// The status of a generation after a prompt, in a model of 128 positions.
absl::Status StatusOfLength(const RopeScaling& scaling, int64_t prompt_tokens, int64_t max_new_tokens) {
  LlamaConfig model;
  model.max_positions = 128;
  model.rope_scaling = scaling;
  model.rope_sequence = GenerationRopeSequence(model, prompt_tokens);
  return CheckLength(model, prompt_tokens, max_new_tokens);
}

TEST(CheckLength, AllowsAllPositionsIfTheFrequenciesDoNotDependOnTheSequence) {
  EXPECT_OK(StatusOfLength(LinearRopeScaling{4.0F}, 100, 28));
  EXPECT_THAT(StatusOfLength(LinearRopeScaling{4.0F}, 100, 29),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has 128 positions")));
}

TEST(CheckLength, RefusesSequencesInWhichTheFrequenciesChange) {
  EXPECT_OK(StatusOfLength(DynamicRopeScaling{4.0F}, 100, 28));
  for (const int64_t prompt_tokens : {100, 129}) {
    EXPECT_THAT(StatusOfLength(DynamicRopeScaling{4.0F}, prompt_tokens, 29),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rope_type dynamic")));
  }
  LongRopeScaling longrope;
  longrope.original_max_positions = 32;
  EXPECT_OK(StatusOfLength(longrope, 30, 2));
  EXPECT_OK(StatusOfLength(longrope, 33, 95));
  EXPECT_THAT(StatusOfLength(longrope, 30, 3),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("rope_type longrope"),
                             HasSubstr("at most 2, or a prompt of more than 32 tokens"))));
  EXPECT_THAT(StatusOfLength(longrope, 33, 96),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has 128 positions")));
}

class GenerateRun : public TrainRun {
 protected:
  GenerateRun() {
    config_.optimizer.steps = 1;
    config_.output.export_folder = folder_ / "model";
    Run({1, 1});
    generate_.hf_folder = config_.output.export_folder;
    generate_.prompt = "abc";
    generate_.max_new_tokens = 5;
  }

  GenerateReport GenerateOn(const NodeMap& nodes) {
    GenerateReport first;
    EXPECT_OK(Validate(generate_));
    EXPECT_OK(RunThreadRanks(nodes, [&](Bootstrap& bootstrap) -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(const GenerateReport report, Generate(bootstrap, generate_, {}));
      if (bootstrap.rank() == 0) first = report;
      return absl::OkStatus();
    }));
    return first;
  }

  GenerateConfig generate_;
};

TEST_F(GenerateRun, RefusesOptionsOfDrawsIfItDrawsNothing) {
  const auto error = [&](const SamplingOptions& sampling) {
    generate_.sampling = sampling;
    return Validate(generate_);
  };
  const auto is_refused =
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--top-k, --top-p and --seed need more than 0"));
  EXPECT_THAT(error({.top_k = 2}), is_refused);
  EXPECT_THAT(error({.top_p = 0.5}), is_refused);
  EXPECT_THAT(error({.seed = 0}), is_refused);
  EXPECT_OK(error({.temperature = 1, .top_k = 2, .top_p = 0.5, .seed = 0}));
}

TEST_F(GenerateRun, DrawsTheSameTokensOnEveryPlacementOfTheRanks) {
  generate_.sampling.temperature = 1;
  std::set<std::vector<int32_t>> results;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    generate_.parallel.param_dtype = dtype;
    results.clear();
    for (const NodeMap& nodes : {NodeMap::OneNode(1), NodeMap::OneNode(3), NodeMap::RanksPerNode(4, 2),
                                 NodeMap::RanksPerNode(2, 1)}) {
      results.insert(GenerateOn(nodes).tokens);
    }
    EXPECT_EQ(results.size(), 1);
    EXPECT_EQ(results.begin()->size(), 5);
  }
}

TEST_F(GenerateRun, TakesMemoryForTheCacheAndNoneForGradients) {
  const GenerateReport report = GenerateOn(NodeMap::RanksPerNode(2, 1));
  EXPECT_EQ(report.peak_gradient_bytes, 0);
  constexpr int64_t kLayers = 2, kTokens = 3 + 5, kKvHeads = 1, kHeadDim = 8;
  EXPECT_EQ(report.kv_cache_bytes, 2 * kLayers * kTokens * kKvHeads * kHeadDim * int64_t{sizeof(float)});
}

TEST_F(GenerateRun, NamesTheCacheIfItDoesNotFit) {
  const std::string file = generate_.hf_folder + "/config.json";
  Json model = ParseJson(ReadFile(file));
  model["max_position_embeddings"] = int64_t{1} << 40;
  std::ofstream(file) << model;
  generate_.max_new_tokens = int64_t{1} << 38;  // 128 bytes each.
  const absl::Status error = RunThreadRanks(
      NodeMap::OneNode(2), [&](Bootstrap& bootstrap) { return Generate(bootstrap, generate_, {}).status(); });
  EXPECT_THAT(error, StatusIs(absl::StatusCode::kResourceExhausted,
                              AllOf(HasSubstr("32768.0 GiB of the key-value cache"),
                                    Not(HasSubstr("optimizer")), Not(HasSubstr("gradients")),
                                    Not(HasSubstr("activations")), HasSubstr("a smaller --max-new-tokens"))));
}

TEST_F(GenerateRun, DoesNotAdviseToTrainANewModelIfTheWeightsAreMissing) {
  std::filesystem::remove(generate_.hf_folder + "/model.safetensors");
  const absl::Status error = RunThreadRanks(
      NodeMap::OneNode(2), [&](Bootstrap& bootstrap) { return Generate(bootstrap, generate_, {}).status(); });
  EXPECT_THAT(error, StatusIs(absl::StatusCode::kNotFound,
                              AllOf(HasSubstr("has neither model.safetensors"), Not(HasSubstr("train")))));
}

TEST_F(GenerateRun, RefusesAnEndTokenOutsideOfTheVocabulary) {
  const std::string file = generate_.hf_folder + "/generation_config.json";
  std::ofstream(file) << R"({"eos_token_id": [7, 256]})";
  const absl::Status error = RunThreadRanks(
      NodeMap::OneNode(2), [&](Bootstrap& bootstrap) { return Generate(bootstrap, generate_, {}).status(); });
  EXPECT_THAT(error,
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("'" + file + "' has the eos_token_id 256: the vocabulary ends at 255")));
}

TEST_F(GenerateRun, EndsOnAllRanksIfTheirPromptsDiffer) {
  const absl::Status error = RunThreadRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) {
    GenerateConfig config = generate_;
    config.prompt = bootstrap.rank() == 0 ? "abc" : "abcd";
    return Generate(bootstrap, config, {}).status();
  });
  EXPECT_THAT(error, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--prompt")));
}

TEST_F(GenerateRun, NamesThePromptFileIfATokenIsOutsideOfTheVocabulary) {
  generate_.prompt.reset();
  generate_.print_tokens = true;
  generate_.prompt_tokens_file = folder_.Write("ids", "1 999");
  const absl::Status error = RunThreadRanks(
      NodeMap::OneNode(2), [&](Bootstrap& bootstrap) { return Generate(bootstrap, generate_, {}).status(); });
  EXPECT_THAT(error, StatusIs(absl::StatusCode::kInvalidArgument,
                              AllOf(HasSubstr("--prompt-tokens-file " + generate_.prompt_tokens_file),
                                    HasSubstr("token 999: the vocabulary ends at 255"))));
}

TEST_F(GenerateRun, EndsOnAllRanksIfRankZeroAloneHasNoPromptFile) {
  const std::string file = folder_.Write("ids", "1");
  const absl::Status error = RunThreadRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) {
    GenerateConfig config = generate_;
    if (bootstrap.rank() == 1) {
      config.prompt.reset();
      config.prompt_tokens_file = file;
    }
    return Generate(bootstrap, config, {}).status();
  });
  EXPECT_THAT(error, StatusIs(absl::StatusCode::kInvalidArgument,
                              HasSubstr("--prompt-tokens-file " + file +
                                        ": rank 0 has no such flag: give all ranks the same flags")));
}

TEST_F(GenerateRun, EndsOnAllRanksIfTheirModelsEndAtDifferentTokens) {
  const std::string other = folder_ / "other";
  std::filesystem::copy(generate_.hf_folder, other);
  std::ofstream(other + "/generation_config.json") << R"({"eos_token_id": [7, 5]})";
  const absl::Status error = RunThreadRanks(NodeMap::OneNode(2), [&](Bootstrap& bootstrap) {
    GenerateConfig config = generate_;
    if (bootstrap.rank() == 1) config.hf_folder = other;
    return Generate(bootstrap, config, {}).status();
  });
  EXPECT_THAT(error, StatusIs(absl::StatusCode::kDataLoss,
                              HasSubstr("eos_token_id of generation_config.json or config.json is none on "
                                        "rank 0 and 5,7 on rank 1")));
}

}  // namespace
}  // namespace weft
