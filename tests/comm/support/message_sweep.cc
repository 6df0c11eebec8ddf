#include "tests/comm/support/message_sweep.h"

#include <algorithm>
#include <map>
#include <utility>

#include <absl/strings/str_cat.h>

#include "weft/core/status.h"

namespace weft::testing {
namespace {

// One rank's end of one message.
struct End {
  int peer;
  int tag;
  TestBuffer buffer;
  Work work;
};

absl::StatusOr<End> Send(EngineFixture& fixture, int to, int tag, int64_t bytes, bool in_node_memory) {
  WEFT_ASSIGN_OR_RETURN(TestBuffer buffer,
                        TestBuffer::Make(*fixture.pool, in_node_memory, DType::kU8, bytes));
  FillMessage(fixture.engine->bootstrap().rank(), to, tag, buffer.data(), bytes);
  Work work = fixture.engine->Send({to, tag, /*channel=*/7}, buffer.data(), DType::kU8, bytes);
  return End{to, tag, std::move(buffer), std::move(work)};
}

absl::StatusOr<End> Receive(EngineFixture& fixture, int from, int tag, int64_t bytes, bool in_node_memory) {
  WEFT_ASSIGN_OR_RETURN(TestBuffer buffer,
                        TestBuffer::Make(*fixture.pool, in_node_memory, DType::kU8, bytes));
  Work work = fixture.engine->Receive({from, tag, /*channel=*/7}, buffer.data(), DType::kU8, bytes);
  return End{from, tag, std::move(buffer), std::move(work)};
}

enum class Order : uint8_t { kReceivesFirst, kSendsFirst, kFromAnySource };

// `tag` differs between exchanges: a receive from any source must not match a message of the next exchange.
absl::Status Exchange(EngineFixture& fixture, int tag, int64_t bytes, bool from_node, bool to_node,
                      Order order) {
  const int ranks = fixture.engine->bootstrap().size();
  const int me = fixture.engine->bootstrap().rank();
  std::vector<End> sends;
  std::vector<End> receives;
  const auto send_all = [&]() -> absl::Status {
    for (int to = 0; to < ranks; ++to) {
      WEFT_ASSIGN_OR_RETURN(sends.emplace_back(), Send(fixture, to, tag, bytes, from_node));
    }
    return absl::OkStatus();
  };
  const auto receive_all = [&]() -> absl::Status {
    for (int from = 0; from < ranks; ++from) {
      const int source = order == Order::kFromAnySource ? kAnySource : from;
      WEFT_ASSIGN_OR_RETURN(receives.emplace_back(), Receive(fixture, source, tag, bytes, to_node));
    }
    return absl::OkStatus();
  };
  if (order == Order::kSendsFirst) {
    WEFT_RETURN_IF_ERROR(send_all());
    WEFT_RETURN_IF_ERROR(receive_all());
  } else {
    WEFT_RETURN_IF_ERROR(receive_all());
    WEFT_RETURN_IF_ERROR(send_all());
  }
  std::vector<int> sources;
  for (End& receive : receives) {
    WEFT_RETURN_IF_ERROR(receive.work.Wait());
    sources.push_back(receive.work.source());
    if (order != Order::kFromAnySource && sources.back() != receive.peer)
      return absl::InternalError(absl::StrCat("a receive from ", receive.peer, " names ", sources.back()));
    WEFT_RETURN_IF_ERROR(CheckMessage(sources.back(), me, receive.tag, receive.buffer.data(), bytes));
    WEFT_RETURN_IF_ERROR(receive.work.WaitReleased());
  }
  std::sort(sources.begin(), sources.end());
  for (int rank = 0; rank < ranks; ++rank) {
    if (sources[static_cast<size_t>(rank)] != rank)
      return absl::InternalError(absl::StrCat("no message from rank ", rank));
  }
  for (End& send : sends) WEFT_RETURN_IF_ERROR(send.work.WaitReleased());
  return absl::OkStatus();
}

}  // namespace

std::byte MessageByte(int from, int to, int tag, int64_t i) {
  const auto mixed = static_cast<uint64_t>(i) * 2654435761U + static_cast<uint64_t>(from) * 97 +
                     static_cast<uint64_t>(to) * 31 + static_cast<uint64_t>(tag) * 7;
  return static_cast<std::byte>(mixed ^ (mixed >> 13));
}

void FillMessage(int from, int to, int tag, std::byte* data, int64_t bytes) {
  for (int64_t i = 0; i < bytes; ++i) data[i] = MessageByte(from, to, tag, i);
}

absl::Status CheckMessage(int from, int to, int tag, const std::byte* data, int64_t bytes) {
  for (int64_t i = 0; i < bytes; ++i) {
    if (data[i] == MessageByte(from, to, tag, i)) continue;
    return absl::DataLossError(
        absl::StrCat("byte ", i, " of the message of ", bytes, " bytes from rank ", from, " is wrong"));
  }
  return absl::OkStatus();
}

absl::Status SweepMessages(EngineFixture& fixture, const std::vector<int64_t>& sizes) {
  int tag = -3;
  for (const int64_t bytes : sizes) {
    for (const bool from_node : {false, true}) {
      for (const bool to_node : {false, true}) {
        for (const Order order : {Order::kReceivesFirst, Order::kSendsFirst, Order::kFromAnySource}) {
          const absl::Status exchanged = Exchange(fixture, tag++, bytes, from_node, to_node, order);
          if (exchanged.ok()) continue;
          return Annotate(exchanged,
                          absl::StrCat(bytes, " bytes, from node memory: ", from_node,
                                       ", to node memory: ", to_node, ", order ", static_cast<int>(order)));
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace weft::testing
