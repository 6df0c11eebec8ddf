#include "src/train/loop/data_check.h"

#include <cstdint>

#include <absl/strings/str_cat.h>

#include "weft/core/size_text.h"
#include "weft/core/status.h"

namespace weft {
namespace {

constexpr int64_t kAnnouncedBytes = int64_t{1} << 30;  // A check of more takes some seconds.

}  // namespace

absl::Status CheckData(Bootstrap& bootstrap, const TrainInputs& inputs, absl::FunctionRef<bool()> is_stopped,
                       RunConsole& console, absl::Duration timeout) {
  const int64_t vocab_size = inputs.model.vocab_size;
  const auto check = [&](const Corpus& corpus) {
    if (const int64_t bytes = corpus.BytesToCheck(vocab_size); bytes > kAnnouncedBytes) {
      console.PrintLine(absl::StrCat("data     checks ", SizeText(bytes),
                                     " of token ids against the vocabulary of ", vocab_size));
    }
    absl::Status status = corpus.CheckTokens(vocab_size, bootstrap.rank(), bootstrap.size(), is_stopped);
    if (status.ok() && corpus.has_loss_mask() && bootstrap.rank() == 0) status = corpus.CheckAnyLoss();
    return AgreeOnStatus(bootstrap, status, timeout);
  };
  WEFT_RETURN_IF_ERROR(check(inputs.corpus));
  return inputs.eval_corpus ? check(*inputs.eval_corpus) : absl::OkStatus();
}

}  // namespace weft
