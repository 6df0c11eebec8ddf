// One all-gather of blobs in a logarithmic number of messages a rank: the part of one rank. Pure.
//
// Note [Blob relays]
// Problem: if each rank sends its blob to every other rank, a start-up of P ranks takes P * P messages, and
//   connects all pairs of ranks.
// Rule: a dissemination (Bruck, "Efficient algorithms for all-to-all communications", 1997). With distances
//   d = 1, 2, 4, … below P, rank r sends to rank r - d the blobs of r, r + 1, …, at most d and at most P - d
//   of them, once it has them. In the second half of its timeout, and after it has given up the round, it
//   *gossips*: it sends those of them that it has.
// Why it suffices: a rank receives each blob once, and the blobs that it needs never pass itself. A late rank
//   therefore completes a round that all others have given up: what they owe it does not depend on its blob.
//   See Note [Reset rounds].
// Missing ranks: the blobs that a rank lacks are also those behind a late relay. Ranks that gossip therefore
//   tell the same neighbors which ranks they know to have called. As long as fewer ranks are silent than a
//   rank has neighbors, each learns of every call, and names exactly the late ranks.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>

namespace weft::internal {

class BlobRelay {
 public:
  using RoundNumber = uint64_t;
  static constexpr size_t kMaxBlobBytes = size_t{1} << 30;
  struct Message {
    int peer;
    std::shared_ptr<std::string> bytes;  // At most `max_bytes`, and the headers of the message and of a blob.
  };

  // `max_bytes`: messages with several blobs have no more bytes. REQUIRES: no blob is larger.
  BlobRelay(RoundNumber round, int rank, int size, size_t max_bytes = kMaxBlobBytes);

  // The round of a message. nullopt: it is no message of a relay.
  static std::optional<RoundNumber> RoundOf(std::string_view message);

  // Adds the blob of this rank, which thereby calls the round.
  void Contribute(std::string_view blob);
  // Takes a message of this round. It may arrive before this rank calls the round.
  // Errors: kInternal (not a message of this round and this number of ranks).
  absl::Status Receive(std::string_view message);
  // Removes and returns the messages that this rank can send now.
  std::vector<Message> TakeMessages();
  // Adds messages with the blobs of unfinished steps that have not been sent, and with the ranks that are
  // known to have called, if that has changed. See Note [Blob relays].
  void Gossip();

  // True if this rank has called, has all blobs, and has passed on all that it owes.
  bool complete() const { return have_ == size_ && next_step_ == steps_.size(); }
  // REQUIRES: complete(). Indexed by rank. Removes the blobs.
  std::vector<std::string> TakeBlobs();
  // Ranks that are not known to have called. Empty: all have called, but some blobs have not arrived.
  std::vector<int> MissingRanks() const;
  // Ranks whose blobs have not arrived.
  std::vector<int> MissingBlobs() const;

 private:
  struct Step {
    int peer;                // The rank that gets the blobs.
    int count;               // Number of blobs, from that of this rank on.
    std::vector<bool> sent;  // By distance from this rank. Empty: none.
  };
  int RankAt(int distance) const { return (rank_ + distance) % size_; }
  void Keep(int rank, std::string_view blob);
  // Sends the blobs of a step that this rank has and has not sent.
  void SendBlobs(Step& step);
  absl::Status ReceiveBlobs(std::string_view list);
  absl::Status ReceiveCallers(std::string_view bits);
  absl::Status Malformed() const;

  const RoundNumber round_;
  const int rank_;
  const int size_;
  const size_t max_bytes_;
  std::vector<Step> steps_;
  size_t next_step_ = 0;                           // The first step that is not sent.
  int consecutive_ = 0;                            // Blobs from this rank's on without a gap.
  int have_ = 0;                                   // Number of blobs.
  std::vector<std::optional<std::string>> blobs_;  // By rank.
  std::string called_;                             // A bit for each rank that is known to have called.
  std::string announced_callers_;                  // The value of called_ that neighbors have been told.
  std::vector<Message> outgoing_;
};

}  // namespace weft::internal
