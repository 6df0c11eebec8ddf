#include "weft/mesh/bootstrap.h"

#include <algorithm>

#include <absl/strings/cord.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include "src/mesh/base/deadline.h"
#include "weft/core/status.h"

namespace weft {
namespace {

// Status::ToString prints this as [weft.ranks='all'].
constexpr const char* kAgreedPayload = "weft.ranks";
constexpr const char* kAgreement = "agreement";

// One rank's part of an exchange.
struct Part {
  std::string what;
  absl::StatusOr<std::string> content;
};

// Format of a part: a mark, its code in decimal, its name, each with a line feed; then the data or the
// message.
constexpr std::string_view kMark = "weft.exchange\n";

std::string Encode(std::string_view what, const absl::StatusOr<std::string>& content) {
  return absl::StrCat(ToAbsl(kMark), static_cast<int>(content.status().code()), "\n", ToAbsl(what), "\n",
                      content.ok() ? absl::string_view(*content) : content.status().message());
}

// Removes the first line of `text` and returns it.
std::string_view TakeLine(std::string_view& text) {
  const size_t end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

Part Decode(std::string_view blob) {
  if (!blob.starts_with(kMark)) return {"no exchange", std::string()};
  blob.remove_prefix(kMark.size());
  int code = 0;
  if (!absl::SimpleAtoi(ToAbsl(TakeLine(blob)), &code)) return {"no exchange", std::string()};
  Part part{std::string(TakeLine(blob)), std::string()};
  if (code == 0) {
    part.content = std::string(blob);
  } else {
    part.content = absl::Status(static_cast<absl::StatusCode>(code), ToAbsl(blob));
  }
  return part;
}

absl::Status Agreed(absl::Status status) {
  status.SetPayload(kAgreedPayload, absl::Cord("all"));
  return status;
}

// The error of the lowest failing rank.
absl::Status FirstError(const std::vector<Part>& parts, int own_rank, const absl::Status& own) {
  for (int rank = 0; rank < static_cast<int>(parts.size()); ++rank) {
    if (rank == own_rank && !own.ok()) return Agreed(own);
    const absl::Status& status = parts[static_cast<size_t>(rank)].content.status();
    if (!status.ok()) return Agreed(Annotate(status, absl::StrCat("rank ", rank)));
  }
  return absl::OkStatus();
}

absl::Status CheckSameExchange(const std::vector<Part>& parts) {
  for (size_t rank = 1; rank < parts.size(); ++rank) {
    if (parts[rank].what == parts[0].what) continue;
    return Agreed(absl::InternalError(
        absl::StrCat("rank 0 is in '", parts[0].what, "', but rank ", rank, " in '", parts[rank].what,
                     "': all ranks must call the same collectives at the same point of the program")));
  }
  return absl::OkStatus();
}

}  // namespace

int NodeMap::node_count() const {
  return node_of_rank.empty() ? 0 : *std::max_element(node_of_rank.begin(), node_of_rank.end()) + 1;
}

std::vector<int> NodeMap::RanksOf(int node) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size(); ++rank) {
    if (node_of_rank[rank] == node) ranks.push_back(rank);
  }
  return ranks;
}

NodeMap NodeMap::OneNode(int ranks) { return RanksPerNode(ranks, ranks); }

NodeMap NodeMap::RanksPerNode(int ranks, int ranks_per_node) {
  WEFT_CHECK(ranks >= 1 && ranks_per_node >= 1, "a node map needs at least one rank and one rank per node");
  NodeMap map;
  for (int rank = 0; rank < ranks; ++rank) map.node_of_rank.push_back(rank / ranks_per_node);
  return map;
}

absl::StatusOr<absl::Duration> DefaultTimeout() {
  return internal::SecondsFromEnvironment("WEFT_TIMEOUT_S", absl::ToDoubleSeconds(kFallbackTimeout));
}

absl::StatusOr<absl::Duration> TimeoutOrDefault(std::optional<absl::Duration> own) {
  return own.has_value() ? absl::StatusOr<absl::Duration>(*own) : DefaultTimeout();
}

absl::StatusOr<std::vector<std::string>> ExchangeBlobs(Bootstrap& bootstrap, std::string_view what,
                                                       const absl::StatusOr<std::string>& local,
                                                       absl::Duration timeout) {
  const absl::Status& own = local.status();
  // A rank that has missed a deadline would miss the one of the exchange as well.
  if (absl::IsDeadlineExceeded(own) || IsAgreedError(own)) return own;
  auto blobs = bootstrap.AllGatherBlob(Encode(what, local), timeout);
  if (!blobs.ok()) {
    // AgreeOnStatus has no name to add.
    if (own.ok()) return what == kAgreement ? blobs.status() : Annotate(blobs.status(), what);
    return absl::Status(
        blobs.status().code(),
        absl::StrCat(own.message(), "; then the ranks could not agree: ", blobs.status().message()));
  }
  // Usually all ranks are in this exchange and have data, so that only the ends of their blobs differ.
  const std::string start = Encode(what, std::string());
  if (std::all_of(blobs->begin(), blobs->end(), [&](const std::string& b) { return b.starts_with(start); })) {
    for (std::string& blob : *blobs) blob.erase(0, start.size());
    return blobs;
  }
  std::vector<Part> parts;
  parts.reserve(blobs->size());
  for (const std::string& blob : *blobs) parts.push_back(Decode(blob));
  WEFT_RETURN_IF_ERROR(FirstError(parts, bootstrap.rank(), own));
  WEFT_RETURN_IF_ERROR(CheckSameExchange(parts));
  std::vector<std::string> contents;
  contents.reserve(parts.size());
  for (Part& part : parts) contents.push_back(*std::move(part.content));
  return contents;
}

absl::Status AgreeOnStatus(Bootstrap& bootstrap, const absl::Status& local, absl::Duration timeout) {
  const absl::StatusOr<std::string> part = local.ok() ? absl::StatusOr<std::string>(std::string()) : local;
  return ExchangeBlobs(bootstrap, kAgreement, part, timeout).status();
}

absl::Status AgreeOnOptions(Bootstrap& bootstrap, std::string_view what,
                            const absl::StatusOr<std::vector<OptionValue>>& own, absl::Duration timeout) {
  const auto value = [](std::string* out, const OptionValue& option) { absl::StrAppend(out, option.value); };
  const absl::StatusOr<std::string> text =
      own.ok() ? absl::StatusOr<std::string>(absl::StrJoin(*own, "\n", value)) : own.status();
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> texts, ExchangeBlobs(bootstrap, what, text, timeout));
  const std::vector<std::string> first = absl::StrSplit(texts[0], '\n');
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    const std::vector<std::string> values = absl::StrSplit(texts[rank], '\n');
    for (size_t i = 0; i < std::min({own->size(), first.size(), values.size()}); ++i) {
      if (values[i] == first[i]) continue;
      const OptionValue& option = (*own)[i];
      return Agreed(absl::InvalidArgumentError(absl::StrCat(ToAbsl(what), ": ", option.name, " is ", first[i],
                                                            " on rank 0, but ", values[i], " on rank ", rank,
                                                            ": ", option.remedy, " alike on all ranks")));
    }
    return Agreed(absl::InvalidArgumentError(absl::StrCat(ToAbsl(what), ": rank 0 has ", first.size(),
                                                          " options, but rank ", rank, " has ", values.size(),
                                                          kSameVersionRemedy, ", and the same program")));
  }
  return absl::OkStatus();
}

bool IsAgreedError(const absl::Status& status) { return status.GetPayload(kAgreedPayload).has_value(); }

}  // namespace weft
