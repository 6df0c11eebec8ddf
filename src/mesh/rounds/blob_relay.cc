#include "src/mesh/rounds/blob_relay.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/mesh/rounds/blob_list.h"
#include "weft/core/status.h"

namespace weft::internal {
namespace {

// A message has a header, then a list of blobs, or a bit for each rank that has called.
enum class Content : uint32_t { kBlobs, kCallers };

struct Header {
  static constexpr uint32_t kMagic = 0x6C627766;  // "fwbl".
  uint32_t magic = kMagic;
  Content content = Content::kBlobs;
  BlobRelay::RoundNumber round = 0;
};

std::string Encode(const Header& header) {
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header));
}

std::optional<Header> HeaderOf(std::string_view message) {
  if (message.size() < sizeof(Header)) return std::nullopt;
  Header header;
  std::memcpy(&header, message.data(), sizeof(header));
  return header.magic == Header::kMagic ? std::optional(header) : std::nullopt;
}

constexpr int kBits = 8;

bool HasBit(const std::string& bits, int rank) {
  return ((static_cast<unsigned char>(bits[static_cast<size_t>(rank / kBits)]) >> (rank % kBits)) & 1U) != 0;
}

void SetBit(std::string& bits, int rank) {
  char& byte = bits[static_cast<size_t>(rank / kBits)];
  byte = static_cast<char>(static_cast<unsigned char>(byte) | 1U << (rank % kBits));
}

}  // namespace

BlobRelay::BlobRelay(RoundNumber round, int rank, int size, size_t max_bytes)
    : round_(round),
      rank_(rank),
      size_(size),
      max_bytes_(max_bytes),
      blobs_(static_cast<size_t>(size)),
      called_(static_cast<size_t>((size + kBits - 1) / kBits), '\0'),
      announced_callers_(called_) {
  for (int64_t distance = 1; distance < size; distance *= 2) {
    const auto d = static_cast<int>(distance);
    steps_.push_back({RankAt(size - d), std::min(d, size - d), {}});
  }
}

std::optional<BlobRelay::RoundNumber> BlobRelay::RoundOf(std::string_view message) {
  const std::optional<Header> header = HeaderOf(message);
  return header ? std::optional(header->round) : std::nullopt;
}

void BlobRelay::Contribute(std::string_view blob) { Keep(rank_, blob); }

void BlobRelay::Keep(int rank, std::string_view blob) {
  std::optional<std::string>& place = blobs_[static_cast<size_t>(rank)];
  if (place) return;
  place.emplace(blob);
  ++have_;
  SetBit(called_, rank);
  while (consecutive_ < size_ && blobs_[static_cast<size_t>(RankAt(consecutive_))]) ++consecutive_;
  while (next_step_ < steps_.size() && steps_[next_step_].count <= consecutive_)
    SendBlobs(steps_[next_step_++]);
}

void BlobRelay::SendBlobs(Step& step) {
  step.sent.resize(static_cast<size_t>(step.count));
  std::shared_ptr<std::string> message;
  for (int i = 0; i < step.count; ++i) {
    const int rank = RankAt(i);
    const std::optional<std::string>& blob = blobs_[static_cast<size_t>(rank)];
    if (!blob || step.sent[static_cast<size_t>(i)]) continue;
    step.sent[static_cast<size_t>(i)] = true;
    if (message == nullptr || message->size() + blob->size() > max_bytes_) {
      message = std::make_shared<std::string>(Encode({.content = Content::kBlobs, .round = round_}));
      outgoing_.push_back({step.peer, message});
    }
    AppendBlob(*message, {rank, *blob});
  }
}

std::vector<BlobRelay::Message> BlobRelay::TakeMessages() { return std::exchange(outgoing_, {}); }

void BlobRelay::Gossip() {
  for (size_t step = next_step_; step < steps_.size(); ++step) SendBlobs(steps_[step]);
  if (announced_callers_ == called_) return;
  announced_callers_ = called_;
  auto message = std::make_shared<std::string>(Encode({.content = Content::kCallers, .round = round_}));
  message->append(called_);
  for (const Step& step : steps_) outgoing_.push_back({step.peer, message});
}

absl::Status BlobRelay::Malformed() const {
  return absl::InternalError(absl::StrCat("rank ", rank_, " got a malformed message in round ", round_,
                                          " of the blob exchange: do all ranks run the same build?"));
}

absl::Status BlobRelay::Receive(std::string_view message) {
  const std::optional<Header> header = HeaderOf(message);
  if (!header || header->round != round_) return Malformed();
  message.remove_prefix(sizeof(Header));
  return header->content == Content::kBlobs ? ReceiveBlobs(message) : ReceiveCallers(message);
}

absl::Status BlobRelay::ReceiveBlobs(std::string_view list) {
  const std::optional<std::vector<RankBlob>> entries = ParseBlobs(list, size_);
  if (!entries) return Malformed();
  for (const RankBlob& entry : *entries) {
    if (entry.rank == rank_) return Malformed();  // Nobody sends it its own blob.
    Keep(entry.rank, entry.blob);
  }
  return absl::OkStatus();
}

absl::Status BlobRelay::ReceiveCallers(std::string_view bits) {
  if (bits.size() != called_.size()) return Malformed();
  for (size_t i = 0; i < bits.size(); ++i) {
    called_[i] =
        static_cast<char>(static_cast<unsigned char>(called_[i]) | static_cast<unsigned char>(bits[i]));
  }
  return absl::OkStatus();
}

std::vector<std::string> BlobRelay::TakeBlobs() {
  std::vector<std::string> all;
  all.reserve(blobs_.size());
  for (std::optional<std::string>& blob : blobs_) all.push_back(*std::move(blob));
  return all;
}

std::vector<int> BlobRelay::MissingRanks() const {
  std::vector<int> missing;
  for (int rank = 0; rank < size_; ++rank) {
    if (!HasBit(called_, rank)) missing.push_back(rank);
  }
  return missing;
}

std::vector<int> BlobRelay::MissingBlobs() const {
  std::vector<int> missing;
  for (int rank = 0; rank < size_; ++rank) {
    if (!blobs_[static_cast<size_t>(rank)]) missing.push_back(rank);
  }
  return missing;
}

}  // namespace weft::internal
