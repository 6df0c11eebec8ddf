// Mail between the ranks of a node.
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "src/comm/links/node_link.h"
#include "tests/comm/support/link_fixture.h"

namespace weft::testing {
namespace {

// More messages than the mailbox holds: the rest is sent by FlushMail as the peer reads.
TEST(NodeMail, BringsMessagesInOrder) {
  RunOnANode([](Bootstrap& bootstrap, NodeLink& link, int peer) -> absl::Status {
    constexpr int kMessages = 100;
    EXPECT_FALSE(link.ReceiveMail());
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    for (int i = 0; i < kMessages; ++i) link.SendMail(peer, absl::StrCat("message ", i));
    for (int received = 0; received < kMessages;) {
      link.FlushMail();
      const auto message = link.ReceiveMail();
      if (!message) continue;
      EXPECT_EQ(message->peer, peer);
      EXPECT_EQ(message->bytes, absl::StrCat("message ", received++));
    }
    while (link.FlushMail()) {
    }
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    EXPECT_FALSE(link.ReceiveMail());
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    return BootstrapBarrier(bootstrap);
  });
}

TEST(NodeMail, DropsMessagesAtAReset) {
  RunOnANode([](Bootstrap& bootstrap, NodeLink& link, int peer) -> absl::Status {
    for (int i = 0; i < 100; ++i) link.SendMail(peer, "old");
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    link.Reset();
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    EXPECT_FALSE(link.ReceiveMail());
    EXPECT_FALSE(link.FlushMail());
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    link.SendMail(peer, "new");
    WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    const auto message = link.ReceiveMail();
    EXPECT_EQ(message ? message->bytes : "none", "new");
    return absl::OkStatus();
  });
}

// Nobody reads the rest, which would keep the progress thread awake.
TEST(NodeMail, ToARankWhoseLinkWasDestroyedIsDropped) {
  RunRanks(NodeMap{{0, 0}}, [](Bootstrap& bootstrap) -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(LinkFixture fixture, LinkFixture::Make(bootstrap));
    NodeLink& link = *fixture.link;
    if (bootstrap.rank() == 1) {
      WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
      fixture.link.reset();
      return BootstrapBarrier(bootstrap);
    }
    for (int i = 0; i < 100; ++i) link.SendMail(1, "before");
    EXPECT_TRUE(link.HasUnsentMail());
    for (int i = 0; i < 2; ++i) WEFT_RETURN_IF_ERROR(BootstrapBarrier(bootstrap));
    EXPECT_FALSE(link.FlushMail());
    for (int i = 0; i < 100; ++i) link.SendMail(1, "after");
    EXPECT_FALSE(link.HasUnsentMail());
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace weft::testing
