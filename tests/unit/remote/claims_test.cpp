// SPDX-License-Identifier: Apache-2.0
#include "remote/claims.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "support/fake_backend.h"

namespace modcache::remote {
namespace {

using Holder = Claims::Holder;

constexpr std::int64_t kTtlMs = 20'000;

class ClaimsTest : public ::testing::Test {
 protected:
  Holder take(const std::string& part, const std::string& owner) {
    const auto holder = claims_.take(part, owner, kTtlMs, backend_);
    EXPECT_TRUE(holder.is_ok()) << holder.status().message();
    return holder.value();
  }
  std::string only_name() const {
    EXPECT_EQ(server_->names().size(), 1u);
    return server_->names().front();
  }

  const std::shared_ptr<testing::ValueServer> server_ = testing::ValueServer::make();
  testing::FakeBackend backend_{server_};
  const Seal seal_;
  const Claims claims_{seal_, "p"};
};

TEST_F(ClaimsTest, a_part_is_of_who_took_it_first) {
  EXPECT_EQ(take("part", "a"), Holder::kMine);
  EXPECT_EQ(take("part", "b"), Holder::kOthers);
  EXPECT_EQ(take("part", "a"), Holder::kMine) << "still";
  EXPECT_EQ(take("another", "b"), Holder::kMine);
}

TEST_F(ClaimsTest, a_claim_ends_by_itself_unless_it_is_renewed) {
  take("part", "a");
  EXPECT_EQ(server_->ttl_ms(only_name()), kTtlMs);
  const auto renewed = claims_.renew("part", "a", 2 * kTtlMs, backend_);
  ASSERT_TRUE(renewed.is_ok());
  EXPECT_TRUE(renewed.value());
  EXPECT_EQ(server_->ttl_ms(only_name()), 2 * kTtlMs);
  server_->forget(only_name());
  EXPECT_EQ(take("part", "b"), Holder::kMine) << "taken over";
  EXPECT_FALSE(claims_.renew("part", "a", kTtlMs, backend_).value());
}

TEST_F(ClaimsTest, only_its_owner_gives_a_part_back) {
  take("part", "a");
  EXPECT_TRUE(claims_.give_back("part", "b", backend_).is_ok());
  EXPECT_EQ(take("part", "b"), Holder::kOthers);
  EXPECT_TRUE(claims_.give_back("part", "a", backend_).is_ok());
  EXPECT_EQ(take("part", "b"), Holder::kMine);
}

TEST_F(ClaimsTest, a_part_that_is_done_is_nobodys) {
  take("part", "a");
  EXPECT_TRUE(claims_.mark_done("part", 600'000, backend_).is_ok());
  EXPECT_EQ(take("part", "a"), Holder::kDone);
  EXPECT_EQ(take("part", "b"), Holder::kDone);
  EXPECT_EQ(server_->ttl_ms(only_name()), 600'000);
}

TEST_F(ClaimsTest, what_a_stranger_wrote_is_no_mark_of_a_part_that_is_done) {
  take("part", "a");
  for (const char* const bytes : {"done", "", "owner a"}) {
    server_->set(only_name(), bytes);
    EXPECT_EQ(take("part", "b"), Holder::kOthers) << bytes;
  }
  const Seal secret("secret");
  std::string sealed = "done";
  secret.put_on(sealed);
  server_->set(only_name(), sealed);
  EXPECT_EQ(take("part", "b"), Holder::kOthers);
}

TEST_F(ClaimsTest, a_server_that_cannot_be_asked_says_so) {
  server_->fail(Status::io_error("down"));
  EXPECT_FALSE(claims_.take("part", "a", kTtlMs, backend_).is_ok());
  EXPECT_FALSE(claims_.renew("part", "a", kTtlMs, backend_).is_ok());
  EXPECT_FALSE(claims_.mark_done("part", kTtlMs, backend_).is_ok());
}

}  // namespace
}  // namespace modcache::remote
