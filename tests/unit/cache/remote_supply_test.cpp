// SPDX-License-Identifier: Apache-2.0
//
// A fill that machines share gives the server what it finds near.
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "base/clock.h"
#include "cache/remote_tier.h"
#include "cache/shared_fill.h"
#include "store/entry/scope_filter.h"
#include "support/remote_machines.h"

namespace modcache::cache {
namespace {

using testing::kLongRunUs;
using testing::Machine;
using testing::ServerCall;
using testing::text_entry;

class RemoteSupplyTest : public testing::RemoteMachinesTest {
 protected:
  static std::size_t look_up(Machine& machine, const std::vector<std::string_view>& keys) {
    const BatchRequest request{Machine::request(keys.front()).context, keys, ""};
    const bool before = share_hits_here(true);
    const BatchFound found = machine.cache().session()->lookup_all(request, /*may_write=*/true);
    share_hits_here(before);
    machine.cache().flush();
    return keys.size() - found.missing().size();
  }
  bool has(const std::string& key) const { return server_->has(Machine::entry_name(key)); }

  // A machine whose directory has the keys, which never reached the server.
  std::unique_ptr<Machine> machine_with(const std::vector<std::string>& keys,
                                        Options options = {}) {
    {
      const auto dead = machine("a", {{"remote", ""}});
      for (const std::string& key : keys) dead->store(key, key + " text");
      dead->cache().flush();
    }
    return machine("a", std::move(options));
  }
};

TEST_F(RemoteSupplyTest, rows_of_the_directory_reach_the_server) {
  const auto a = machine_with({"k", "l"});
  EXPECT_EQ(look_up(*a, {"k", "missing", "l"}), 2u);
  EXPECT_EQ(a->stats(), "0 2 0");
  const auto b = machine("b");
  EXPECT_EQ(b->lookup("k"), "k text");
  EXPECT_EQ(b->lookup("l"), "l text");
  EXPECT_EQ(b->stats(), "0 0 2");
}

TEST_F(RemoteSupplyTest, entries_in_memory_reach_the_server) {
  const auto a = machine_with({"k"});
  EXPECT_EQ(a->lookup("k"), "k text");
  EXPECT_FALSE(has("k")) << "no fill that machines share";
  EXPECT_EQ(look_up(*a, {"k"}), 1u);
  EXPECT_EQ(a->stats(), "1 1 0");
  EXPECT_EQ(machine("b")->lookup("k"), "k text");
}

TEST_F(RemoteSupplyTest, a_single_key_reaches_the_server_too) {
  const auto a = machine_with({"k"});
  const bool before = share_hits_here(true);
  EXPECT_EQ(a->lookup("k"), "k text");
  EXPECT_EQ(a->lookup("k"), "k text");
  const Request request = Machine::request("k");
  EXPECT_FALSE(a->cache().session()->find_hits(Session::batch_of(request), true).has_value());
  share_hits_here(before);
  a->cache().flush();
  EXPECT_TRUE(has("k"));
}

TEST_F(RemoteSupplyTest, what_the_server_has_is_not_written_again) {
  const auto a = machine("a");
  a->share("k", "text");
  const int puts = server_->calls(ServerCall::kPut);
  EXPECT_EQ(look_up(*a, {"k"}), 1u);
  EXPECT_EQ(server_->calls(ServerCall::kPut), puts);
}

TEST_F(RemoteSupplyTest, entries_keep_their_age) {
  const auto a = machine_with({"k"});
  const std::int64_t stored_by_us = now_us();
  look_up(*a, {"k"});
  const auto seen = machine("b")->cache().session()->look(Machine::request("k"));
  ASSERT_TRUE(seen.has_value());
  EXPECT_LE(seen->stored_at_us, stored_by_us);
  EXPECT_EQ(seen->run_us, kLongRunUs);
}

TEST_F(RemoteSupplyTest, what_a_clear_of_the_server_left_out_does_not_come_back) {
  const auto a = machine_with({"k"});
  store::ClearFilter older;
  older.older_than_us = now_us() + 1'000'000;
  a->cache().clear(older, Cache::Tier::kRemote);
  EXPECT_EQ(look_up(*a, {"k"}), 1u);
  EXPECT_FALSE(has("k"));
}

TEST_F(RemoteSupplyTest, a_part_is_left_to_others_where_the_server_could_not_be_asked) {
  const auto a = machine_with({"k"});
  const auto remote = a->cache().remote();
  ASSERT_EQ(remote->take_part("part", "a", 10'000).value(), remote::Claims::Holder::kMine);
  server_->refuse_writes(Status::no_space("full"));
  look_up(*a, {"k"});
  server_->refuse_writes(Status::ok());
  EXPECT_TRUE(remote->end_part("part", "a", 10'000).is_ok());
  EXPECT_EQ(remote->take_part("part", "b", 10'000).value(), remote::Claims::Holder::kMine)
      << "it is not done";
}

}  // namespace
}  // namespace modcache::cache
