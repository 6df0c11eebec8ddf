#include "tests/mesh/support/link_conformance.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "tests/support/test_timeout.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;

absl::Status Barrier(Bootstrap& bootstrap) {
  return AgreeOnStatus(bootstrap, absl::OkStatus(), kTestTimeout);
}

// Polls until the request is done or has failed.
absl::Status Finish(Runtime& runtime, WireLink& link, WireLink::RequestId request) {
  const Deadline deadline(runtime, kTestTimeout);
  while (!deadline.HasPassed()) {
    WEFT_RETURN_IF_ERROR(link.Poll());
    WEFT_ASSIGN_OR_RETURN(const bool done, link.Test(request));
    if (done) return absl::OkStatus();
    runtime.Yield();
  }
  return absl::DeadlineExceededError("a message did not arrive");
}

absl::StatusOr<std::optional<WireLink::ControlMessage>> NextControlMessage(WireLink& link) {
  WEFT_RETURN_IF_ERROR(link.Poll());
  return link.PollControlMessage();
}

absl::Status FinishAll(Runtime& runtime, WireLink& link, const std::vector<WireLink::RequestId>& requests) {
  for (const auto request : requests) WEFT_RETURN_IF_ERROR(Finish(runtime, link, request));
  return absl::OkStatus();
}

// Polls both links until all requests are done and all control messages have left, or until an error.
absl::Status FinishOnBoth(Runtime& runtime, WireLink& first, std::vector<WireLink::RequestId> on_first,
                          WireLink& second, std::vector<WireLink::RequestId> on_second) {
  const Deadline deadline(runtime, kTestTimeout);
  while (!deadline.HasPassed()) {
    size_t waiting = 0;
    for (auto [link, requests] : {std::pair(&first, &on_first), std::pair(&second, &on_second)}) {
      WEFT_RETURN_IF_ERROR(link->Poll());
      absl::Status failed;
      std::erase_if(*requests, [&failed, from = link](WireLink::RequestId request) {
        const absl::StatusOr<bool> done = from->Test(request);
        failed.Update(done.status());
        return !done.ok() || *done;
      });
      WEFT_RETURN_IF_ERROR(failed);
      waiting += requests->size() + (link->HasUnsentControlMessages() ? 1 : 0);
    }
    if (waiting == 0) return absl::OkStatus();
    runtime.Yield();
  }
  return absl::DeadlineExceededError("a message did not arrive");
}

// Polls until all control messages have left.
absl::Status FinishControlMessages(Runtime& runtime, WireLink& link) {
  return FinishOnBoth(runtime, link, {}, link, {});
}

// Bytes that depend on the sender, the receiver and the position in the message.
std::vector<uint8_t> Pattern(int from, int to, size_t bytes) {
  std::vector<uint8_t> pattern(bytes);
  for (size_t i = 0; i < bytes; ++i) pattern[i] = static_cast<uint8_t>(31 * from + 7 * to + 3 * i + i / 251);
  return pattern;
}

absl::Status SendValue(WireLink& link, int peer, int tag, const int64_t& value,
                       std::vector<WireLink::RequestId>& requests) {
  WEFT_ASSIGN_OR_RETURN(const auto request, link.Send(peer, tag, &value, sizeof(value)));
  requests.push_back(request);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ReceiveValue(Runtime& runtime, WireLink& link, int peer, int tag) {
  int64_t value = -1;
  WEFT_ASSIGN_OR_RETURN(const auto request,
                        link.Receive(peer, tag, &value, sizeof(value), WireLink::Length::kExact));
  WEFT_RETURN_IF_ERROR(Finish(runtime, link, request));
  return value;
}

absl::Status ExchangePatterns(Bootstrap& bootstrap, WireLink& link, size_t bytes, bool receive_first) {
  const int rank = bootstrap.rank();
  std::vector<std::vector<uint8_t>> sent;
  std::vector<std::vector<uint8_t>> received(bootstrap.size(), std::vector<uint8_t>(bytes, 0xee));
  for (int peer = 0; peer < bootstrap.size(); ++peer) sent.push_back(Pattern(rank, peer, bytes));
  std::vector<WireLink::RequestId> requests;
  for (const bool receiving : {receive_first, !receive_first}) {
    for (int peer = 0; peer < bootstrap.size(); ++peer) {
      WEFT_ASSIGN_OR_RETURN(const auto request, receiving ? link.Receive(peer, 5, received[peer].data(),
                                                                         bytes, WireLink::Length::kExact)
                                                          : link.Send(peer, 5, sent[peer].data(), bytes));
      requests.push_back(request);
    }
  }
  WEFT_RETURN_IF_ERROR(FinishAll(bootstrap.runtime(), link, requests));
  for (int peer = 0; peer < bootstrap.size(); ++peer) EXPECT_EQ(received[peer], Pattern(peer, rank, bytes));
  return absl::OkStatus();
}

}  // namespace

absl::Status DeliversEveryMessage(Bootstrap& bootstrap) {
  WEFT_ASSIGN_OR_RETURN(const auto link, bootstrap.OpenLink(kTestTimeout));
  for (const size_t bytes : {0, 1, 64, 4099, 70001, 200003}) {
    for (const bool receive_first : {true, false}) {
      WEFT_RETURN_IF_ERROR(ExchangePatterns(bootstrap, *link, bytes, receive_first));
    }
  }
  return Barrier(bootstrap);
}

absl::Status MatchesInOrderPerPeerAndTag(Bootstrap& bootstrap) {
  constexpr int64_t kMessages = 50;
  WEFT_ASSIGN_OR_RETURN(const auto link, bootstrap.OpenLink(kTestTimeout));
  const int tags[] = {0, 1, link->max_tag()};
  const auto value = [](int from, int to, int tag, int64_t i) {
    return ((from * 8 + to) * 4 + tag % 4) * 1000 + i;
  };
  std::vector<int64_t> values;
  values.reserve(std::size(tags) * kMessages *
                 static_cast<size_t>(bootstrap.size()));  // Sends use the elements' addresses.
  std::vector<WireLink::RequestId> requests;
  for (int64_t i = 0; i < kMessages; ++i) {
    for (const int tag : tags) {
      for (int peer = 0; peer < bootstrap.size(); ++peer) {
        values.push_back(value(bootstrap.rank(), peer, tag, i));
        WEFT_RETURN_IF_ERROR(SendValue(*link, peer, tag, values.back(), requests));
      }
    }
  }
  // Receive tag by tag, in another order than the tags were sent in.
  for (const int tag : {tags[2], tags[0], tags[1]}) {
    for (int64_t i = 0; i < kMessages; ++i) {
      for (int peer = bootstrap.size() - 1; peer >= 0; --peer) {
        WEFT_ASSIGN_OR_RETURN(const int64_t received, ReceiveValue(bootstrap.runtime(), *link, peer, tag));
        EXPECT_EQ(received, value(peer, bootstrap.rank(), tag, i));
      }
    }
  }
  WEFT_RETURN_IF_ERROR(FinishAll(bootstrap.runtime(), *link, requests));
  return Barrier(bootstrap);
}

absl::Status DeliversControlMessagesInOrder(Bootstrap& bootstrap) {
  constexpr int kMessages = 200;
  WEFT_ASSIGN_OR_RETURN(const auto link, bootstrap.OpenLink(kTestTimeout));
  const auto message = [](int from, int to, int i) {
    std::string text = absl::StrCat(from, ">", to, "#", i);
    text.resize(i % 3 == 0 ? WireLink::kMaxControlMessageBytes : text.size(), '.');
    return i % 7 == 6 ? std::string() : text;
  };
  for (int i = 0; i < kMessages; ++i) {
    for (int peer = 0; peer < bootstrap.size(); ++peer) {
      WEFT_RETURN_IF_ERROR(link->SendControlMessage(peer, message(bootstrap.rank(), peer, i)));
    }
  }
  std::map<int, int> arrived;
  const Deadline deadline(bootstrap.runtime(), kTestTimeout);
  for (int missing = kMessages * bootstrap.size(); missing > 0;) {
    if (deadline.HasPassed())
      return absl::DeadlineExceededError(absl::StrCat(missing, " control messages did not arrive"));
    WEFT_ASSIGN_OR_RETURN(const auto received, NextControlMessage(*link));
    if (!received) {
      bootstrap.runtime().Yield();
      continue;
    }
    --missing;
    EXPECT_EQ(received->bytes, message(received->peer, bootstrap.rank(), arrived[received->peer]++));
  }
  WEFT_RETURN_IF_ERROR(FinishControlMessages(bootstrap.runtime(), *link));
  WEFT_RETURN_IF_ERROR(Barrier(bootstrap));
  WEFT_ASSIGN_OR_RETURN(const auto extra, NextControlMessage(*link));
  EXPECT_FALSE(extra.has_value());
  return Barrier(bootstrap);
}

absl::Status MessagesOfDifferentLinksDoNotMatch(Bootstrap& bootstrap) {
  WEFT_ASSIGN_OR_RETURN(const auto first, bootstrap.OpenLink(kTestTimeout));
  WEFT_ASSIGN_OR_RETURN(const auto second, bootstrap.OpenLink(kTestTimeout));
  const int next = (bootstrap.rank() + 1) % bootstrap.size();
  const int previous = (bootstrap.rank() + bootstrap.size() - 1) % bootstrap.size();
  const int64_t one = 100 + bootstrap.rank();
  const int64_t two = 200 + bootstrap.rank();
  std::vector<WireLink::RequestId> on_first;
  std::vector<WireLink::RequestId> on_second;
  WEFT_RETURN_IF_ERROR(SendValue(*first, next, 3, one, on_first));
  WEFT_RETURN_IF_ERROR(SendValue(*second, next, 3, two, on_second));
  WEFT_RETURN_IF_ERROR(first->SendControlMessage(next, "on the first"));
  // A link need not make progress while a rank polls another one. So post everything, then poll both.
  int64_t from_first = -1;
  int64_t from_second = -1;
  const auto receive = [&](WireLink& link, int64_t& value) {
    return link.Receive(previous, 3, &value, sizeof(value), WireLink::Length::kExact);
  };
  WEFT_ASSIGN_OR_RETURN(const auto receive_second, receive(*second, from_second));
  WEFT_ASSIGN_OR_RETURN(const auto receive_first, receive(*first, from_first));
  on_first.push_back(receive_first);
  on_second.push_back(receive_second);
  WEFT_RETURN_IF_ERROR(FinishOnBoth(bootstrap.runtime(), *first, on_first, *second, on_second));
  EXPECT_EQ(from_first, 100 + previous);
  EXPECT_EQ(from_second, 200 + previous);
  WEFT_RETURN_IF_ERROR(Barrier(bootstrap));
  WEFT_ASSIGN_OR_RETURN(const auto message, NextControlMessage(*second));
  EXPECT_FALSE(message.has_value());
  return Barrier(bootstrap);
}

absl::Status CanceledReceivesTakeNoMessage(Bootstrap& bootstrap) {
  WEFT_ASSIGN_OR_RETURN(const auto link, bootstrap.OpenLink(kTestTimeout));
  const int next = (bootstrap.rank() + 1) % bootstrap.size();
  const int previous = (bootstrap.rank() + bootstrap.size() - 1) % bootstrap.size();
  int64_t canceled = -1;
  WEFT_ASSIGN_OR_RETURN(const auto given_up,
                        link->Receive(previous, 1, &canceled, sizeof(canceled), WireLink::Length::kExact));
  EXPECT_TRUE(link->Cancel(given_up));
  WEFT_RETURN_IF_ERROR(Barrier(bootstrap));
  const int64_t value = bootstrap.rank();
  std::vector<WireLink::RequestId> requests;
  WEFT_RETURN_IF_ERROR(SendValue(*link, next, 1, value, requests));
  WEFT_ASSIGN_OR_RETURN(const int64_t received, ReceiveValue(bootstrap.runtime(), *link, previous, 1));
  EXPECT_EQ(received, previous);
  EXPECT_EQ(canceled, -1);
  WEFT_RETURN_IF_ERROR(FinishAll(bootstrap.runtime(), *link, requests));
  return Barrier(bootstrap);
}

absl::Status CancellingAMatchedReceiveIsSafe(Bootstrap& bootstrap) {
  WEFT_ASSIGN_OR_RETURN(const auto link, bootstrap.OpenLink(kTestTimeout));
  const int next = (bootstrap.rank() + 1) % bootstrap.size();
  const int previous = (bootstrap.rank() + bootstrap.size() - 1) % bootstrap.size();
  // Longer than a transport's eager limit, so that the transfer needs a rendezvous.
  const std::vector<int64_t> sent(size_t{1} << 17, bootstrap.rank());
  std::vector<int64_t> received(sent.size(), -1);
  const size_t bytes = sent.size() * sizeof(int64_t);
  WEFT_ASSIGN_OR_RETURN(const auto send, link->Send(next, 1, sent.data(), bytes));
  static_cast<void>(send);  // It may never match; the link's destructor withdraws it.
  WEFT_RETURN_IF_ERROR(Barrier(bootstrap));
  WEFT_ASSIGN_OR_RETURN(const auto receive,
                        link->Receive(previous, 1, received.data(), bytes, WireLink::Length::kExact));
  if (!link->Cancel(receive)) {
    WEFT_RETURN_IF_ERROR(Finish(bootstrap.runtime(), *link, receive));
    EXPECT_EQ(received, std::vector<int64_t>(sent.size(), previous));
  }
  // In both cases the link no longer accesses the buffer.
  std::fill(received.begin(), received.end(), -2);
  WEFT_RETURN_IF_ERROR(Barrier(bootstrap));
  EXPECT_EQ(received, std::vector<int64_t>(sent.size(), -2));
  return Barrier(bootstrap);
}

absl::Status ReportsDifferentLengths(Bootstrap& bootstrap) {
  WEFT_ASSIGN_OR_RETURN(const auto link, bootstrap.OpenLink(kTestTimeout));
  const int next = (bootstrap.rank() + 1) % bootstrap.size();
  const int previous = (bootstrap.rank() + bootstrap.size() - 1) % bootstrap.size();
  const int64_t value = bootstrap.rank();
  for (const size_t length : {sizeof(value) / 2, sizeof(value) * 2}) {
    std::vector<WireLink::RequestId> requests;
    WEFT_RETURN_IF_ERROR(SendValue(*link, next, 1, value, requests));
    std::vector<char> received(length);
    WEFT_ASSIGN_OR_RETURN(const auto request,
                          link->Receive(previous, 1, received.data(), length, WireLink::Length::kExact));
    EXPECT_THAT(Finish(bootstrap.runtime(), *link, request),
                StatusIs(absl::StatusCode::kInternal, ::testing::Not("")));
    WEFT_RETURN_IF_ERROR(FinishAll(bootstrap.runtime(), *link, requests));
  }
  std::vector<WireLink::RequestId> requests;
  WEFT_RETURN_IF_ERROR(SendValue(*link, next, 1, value, requests));
  WEFT_ASSIGN_OR_RETURN(const int64_t received, ReceiveValue(bootstrap.runtime(), *link, previous, 1));
  EXPECT_EQ(received, previous);
  WEFT_RETURN_IF_ERROR(FinishAll(bootstrap.runtime(), *link, requests));
  return Barrier(bootstrap);
}

absl::Status AcceptsMessagesUpToTheReceivesMaximum(Bootstrap& bootstrap) {
  WEFT_ASSIGN_OR_RETURN(const auto link, bootstrap.OpenLink(kTestTimeout));
  const int next = (bootstrap.rank() + 1) % bootstrap.size();
  const int previous = (bootstrap.rank() + bootstrap.size() - 1) % bootstrap.size();
  constexpr size_t kMaxBytes = 1000;
  for (const size_t bytes : {size_t{0}, size_t{1}, kMaxBytes - 1, kMaxBytes}) {
    const std::vector<uint8_t> sent = Pattern(bootstrap.rank(), next, bytes);
    std::vector<uint8_t> received(kMaxBytes, 0xee);
    WEFT_ASSIGN_OR_RETURN(const auto receive, link->Receive(previous, 1, received.data(), received.size(),
                                                            WireLink::Length::kAtMost));
    WEFT_ASSIGN_OR_RETURN(const auto send, link->Send(next, 1, sent.data(), sent.size()));
    WEFT_RETURN_IF_ERROR(Finish(bootstrap.runtime(), *link, receive));
    std::vector<uint8_t> expected = Pattern(previous, bootstrap.rank(), bytes);
    expected.resize(kMaxBytes, 0xee);
    EXPECT_EQ(received, expected);
    WEFT_RETURN_IF_ERROR(Finish(bootstrap.runtime(), *link, send));
  }
  return Barrier(bootstrap);
}

absl::Status CanBeDestroyedWithUnmatchedReceives(Bootstrap& bootstrap) {
  auto buffer = std::make_unique<std::vector<char>>(200'000);
  WEFT_ASSIGN_OR_RETURN(auto link, bootstrap.OpenLink(kTestTimeout));
  for (int peer = 0; peer < bootstrap.size(); ++peer) {
    WEFT_RETURN_IF_ERROR(
        link->Receive(peer, 9, buffer->data(), buffer->size(), WireLink::Length::kExact).status());
    WEFT_RETURN_IF_ERROR(link->SendControlMessage(peer, "never read"));
  }
  link.reset();
  buffer.reset();
  return DeliversEveryMessage(bootstrap);
}

absl::Status OpensALinkAfterSkipping(Bootstrap& bootstrap) {
  WEFT_ASSIGN_OR_RETURN(const auto counts,
                        bootstrap.AllGatherBlob(absl::StrCat(bootstrap.link_count()), kTestTimeout));
  int64_t highest = 0;
  for (const std::string& count : counts) highest = std::max<int64_t>(highest, std::stoll(count));
  bootstrap.SkipLinks(highest);
  EXPECT_EQ(bootstrap.link_count(), highest);
  WEFT_ASSIGN_OR_RETURN(const auto link, bootstrap.OpenLink(kTestTimeout));
  WEFT_RETURN_IF_ERROR(ExchangePatterns(bootstrap, *link, 100, /*receive_first=*/false));
  return Barrier(bootstrap);
}

absl::Status RejectsArgumentsOutOfRange(Bootstrap& bootstrap) {
  WEFT_ASSIGN_OR_RETURN(const auto link, bootstrap.OpenLink(kTestTimeout));
  char byte = 0;
  const auto invalid = [](const char* text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  };
  EXPECT_THAT(link->Send(bootstrap.size(), 0, &byte, 1), invalid("rank"));
  EXPECT_THAT(link->Receive(-1, 0, &byte, 1, WireLink::Length::kExact), invalid("rank -1"));
  EXPECT_THAT(link->Send(0, -1, &byte, 1), invalid("tag -1"));
  EXPECT_THAT(link->Receive(0, link->max_tag() + 1, &byte, 1, WireLink::Length::kExact), invalid("tag"));
  EXPECT_THAT(link->SendControlMessage(bootstrap.size(), "x"), invalid("rank"));
  EXPECT_THAT(link->SendControlMessage(0, std::string(WireLink::kMaxControlMessageBytes + 1, 'x')),
              invalid("1025 bytes"));
  return Barrier(bootstrap);
}

std::vector<ConformanceTest> LinkConformance() {
  return {
      {"DeliversEveryMessage", DeliversEveryMessage},
      {"MatchesInOrderPerPeerAndTag", MatchesInOrderPerPeerAndTag},
      {"DeliversControlMessagesInOrder", DeliversControlMessagesInOrder},
      {"MessagesOfDifferentLinksDoNotMatch", MessagesOfDifferentLinksDoNotMatch},
      {"CanceledReceivesTakeNoMessage", CanceledReceivesTakeNoMessage},
      {"CancellingAMatchedReceiveIsSafe", CancellingAMatchedReceiveIsSafe},
      {"ReportsDifferentLengths", ReportsDifferentLengths},
      {"AcceptsMessagesUpToTheReceivesMaximum", AcceptsMessagesUpToTheReceivesMaximum},
      {"CanBeDestroyedWithUnmatchedReceives", CanBeDestroyedWithUnmatchedReceives},
      {"OpensALinkAfterSkipping", OpensALinkAfterSkipping},
      {"RejectsArgumentsOutOfRange", RejectsArgumentsOutOfRange},
  };
}

}  // namespace weft::testing
