#include "src/train/loop/data_check.h"

#include <cstdint>
#include <string>
#include <vector>

#include <absl/algorithm/container.h>
#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>

#include "weft/core/size_text.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr int64_t kAnnouncedBytes = int64_t{1} << 30;  // A check of more takes some seconds.

void Announce(const Corpus& corpus, int64_t vocab_size, RunConsole& console) {
  const int64_t token_bytes = corpus.BytesToCheck(vocab_size);
  const int64_t mask_bytes = corpus.has_loss_mask() ? corpus.tokens() : 0;
  if (token_bytes + mask_bytes <= kAnnouncedBytes) return;
  console.PrintLine(
      absl::StrCat("data     checks ", SizeText(token_bytes + mask_bytes), " of ",
                   mask_bytes > 0 ? "loss masks" : "", mask_bytes > 0 && token_bytes > 0 ? ", and of " : "",
                   token_bytes > 0 ? absl::StrCat("token ids against the vocabulary of ", vocab_size) : ""));
}

// Collective: all ranks.
absl::Status CheckLossMasks(Bootstrap& bootstrap, const Corpus& corpus, absl::FunctionRef<bool()> is_stopped,
                            absl::Duration timeout) {
  const absl::StatusOr<bool> has_loss = corpus.CheckLossMask(bootstrap.rank(), bootstrap.size(), is_stopped);
  const absl::StatusOr<std::string> own =
      has_loss.ok() ? absl::StatusOr<std::string>(absl::StrCat(*has_loss ? 1 : 0)) : has_loss.status();
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                        ExchangeBlobs(bootstrap, "losses of masks", own, timeout));
  if (absl::c_linear_search(all, "1")) return absl::OkStatus();
  return AgreeOnStatus(bootstrap, corpus.NoLossError(), timeout);
}

}  // namespace

absl::Status CheckData(Bootstrap& bootstrap, const TrainInputs& inputs, absl::FunctionRef<bool()> is_stopped,
                       RunConsole& console, absl::Duration timeout) {
  const int64_t vocab_size = inputs.model.vocab_size;
  const auto check = [&](const Corpus& corpus) -> absl::Status {
    Announce(corpus, vocab_size, console);
    const absl::Status status =
        corpus.CheckTokens(vocab_size, bootstrap.rank(), bootstrap.size(), is_stopped);
    WEFT_RETURN_IF_ERROR(AgreeOnStatus(bootstrap, status, timeout));
    if (!corpus.has_loss_mask()) return absl::OkStatus();
    return CheckLossMasks(bootstrap, corpus, is_stopped, timeout);
  };
  WEFT_RETURN_IF_ERROR(check(inputs.corpus));
  return inputs.eval_corpus ? check(*inputs.eval_corpus) : absl::OkStatus();
}

}  // namespace weft
