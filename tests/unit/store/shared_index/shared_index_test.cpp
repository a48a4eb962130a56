// SPDX-License-Identifier: Apache-2.0
#include "store/shared_index/shared_index.h"

#include <gmock/gmock.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "support/child_process.h"
#include "support/shared_index_fixture.h"

namespace modcache::store {
namespace {

using testing::added;
using testing::address;
using testing::removed;
using testing::SharedIndexTest;
using testing::View;
using Answer = SharedIndex::Answer;
using Change = SharedIndex::Change;

TEST_F(SharedIndexTest, finds_in_every_process_what_one_committed_and_knows_what_is_absent) {
  View writer(directory_);
  View reader(directory_);
  EXPECT_EQ(reader.ask(address(1)), Answer::kAbsent);
  writer.write({added(address(1), 7)});
  EXPECT_EQ(reader.sequence(address(1)), 7u);
  EXPECT_EQ(reader.ask(address(2)), Answer::kAbsent);
  EXPECT_EQ(reader.index.entries(), 1u);
}

TEST_F(SharedIndexTest, replaces_moves_and_removes_only_the_sequence_that_was_meant) {
  View view(directory_);
  view.write({added(address(1), 7)});
  view.write({removed(address(1), 6)});
  EXPECT_EQ(view.sequence(address(1)), 7u);
  view.write({added(address(1), 9, 7)});
  EXPECT_EQ(view.sequence(address(1)), 9u);
  Change moved = added(address(1), 9, 9);
  moved.segment = 5;
  view.write({moved});
  SharedIndex::Slot slot;
  ASSERT_EQ(view.index.find(address(1), slot), Answer::kFound);
  EXPECT_EQ(slot.segment, 5u);
  view.write({removed(address(1), 9)});
  EXPECT_EQ(view.ask(address(1)), Answer::kAbsent);
  EXPECT_EQ(view.index.entries(), 0u);
}

TEST_F(SharedIndexTest, says_nothing_of_what_is_absent_during_a_change) {
  View writer(directory_);
  View reader(directory_);
  writer.write({added(address(1), 7)});
  writer.index.begin();
  EXPECT_EQ(reader.ask(address(2)), Answer::kUnknown);
  EXPECT_EQ(reader.sequence(address(1)), 7u);
  writer.index.cancel();
  EXPECT_EQ(reader.ask(address(2)), Answer::kAbsent);
}

TEST_F(SharedIndexTest, leaves_two_entries_with_one_tag_to_the_database) {
  View view(directory_);
  const Digest128 other{address(1).high, 5};
  view.write({added(address(1), 7), added(other, 8)});
  EXPECT_EQ(view.ask(address(1)), Answer::kUnknown);
  EXPECT_EQ(view.ask(other), Answer::kUnknown);
  view.write({removed(other, 8)});
  EXPECT_EQ(view.ask(address(1)), Answer::kUnknown);
}

TEST_F(SharedIndexTest, holds_what_a_map_would_whatever_comes_and_goes_and_grows) {
  View writer(directory_);
  View reader(directory_);
  std::map<std::uint64_t, Sequence> expected;
  std::mt19937_64 random(1);
  Sequence sequence = 0;
  for (int batch = 0; batch < 60; ++batch) {
    std::vector<Change> changes;
    for (int i = 0; i < 100; ++i) {
      const std::uint64_t key = random() % 3000;
      const auto known = expected.find(key);
      if (known == expected.end() || random() % 3 == 0) {
        const Sequence instead_of = known == expected.end() ? 0 : known->second;
        changes.push_back(added(address(key), ++sequence, instead_of));
        expected[key] = sequence;
      } else {
        changes.push_back(removed(address(key), known->second));
        expected.erase(known);
      }
    }
    writer.write(changes, sequence);
    ASSERT_EQ(reader.index.entries(), expected.size());
    for (std::uint64_t key = 0; key < 3000; ++key) {
      const auto known = expected.find(key);
      if (known == expected.end()) {
        ASSERT_EQ(reader.ask(address(key)), Answer::kAbsent);
      } else {
        ASSERT_EQ(reader.sequence(address(key)), known->second);
      }
    }
  }
  std::map<std::uint64_t, Sequence> seen;
  reader.index.for_each([&seen](const SharedIndex::Slot& slot) { seen[slot.tag] = slot.sequence; });
  EXPECT_EQ(seen.size(), expected.size());
}

// So many neighbouring tags only occur when somebody constructs them.
TEST_F(SharedIndexTest, is_out_of_use_rather_than_wrong_when_it_is_full_and_cannot_grow) {
  View writer(directory_);
  View reader(directory_);
  std::vector<Change> changes;
  for (Sequence i = 1; i <= 2000; ++i) changes.push_back(added({i, i}, i));
  writer.write(changes);
  EXPECT_EQ(writer.ask({7, 7}), Answer::kUnknown);
  EXPECT_EQ(reader.ask({7, 7}), Answer::kUnknown);
  EXPECT_TRUE(reader.index.needs_building());
  // A table is rebuilt without the entries that do not fit.
  writer.index.reset(2000);
  writer.write({added(address(1), 2001)}, 2001);
  EXPECT_EQ(reader.sequence(address(1)), 2001u);
}

TEST_F(SharedIndexTest, is_out_of_use_once_somebody_died_over_a_change) {
  testing::ChildProcess child([this] {
    View writer(directory_);
    writer.write({added(address(1), 7)});
    writer.index.begin();
    return 0;
  });
  EXPECT_EQ(child.wait(), 0);
  View next(directory_);
  EXPECT_EQ(next.sequence(address(1)), 7u);
  next.write({added(address(2), 8)});
  EXPECT_EQ(next.ask(address(1)), Answer::kUnknown);
  EXPECT_TRUE(next.index.needs_building());
}

TEST_F(SharedIndexTest, is_out_of_use_when_the_database_has_another_last_sequence) {
  View view(directory_);
  view.write({added(address(1), 7)}, 7);
  view.index.check(7);
  EXPECT_EQ(view.sequence(address(1)), 7u);
  view.index.check(8);
  EXPECT_EQ(view.ask(address(1)), Answer::kUnknown);
}

TEST_F(SharedIndexTest, is_of_one_database_and_one_epoch) {
  View view(directory_);
  view.write({added(address(1), 7)});
  View other(directory_);
  other.database.inode = 1;
  SharedIndex of_other(directory_, other.control.get(), other.database, ReadVia::kMmap, true);
  SharedIndex::Slot slot;
  EXPECT_EQ(of_other.find(address(1), slot), Answer::kUnknown);
  view.control->renew_epoch();
  EXPECT_EQ(View(directory_).ask(address(1)), Answer::kUnknown);
}

TEST_F(SharedIndexTest, is_built_from_the_database_while_others_write) {
  View builder(directory_);
  View writer(directory_);
  writer.index.discard();
  ASSERT_TRUE(builder.index.start_building(4, 4));
  EXPECT_FALSE(writer.index.needs_building());
  // The database had 1 to 4 when building began; since then 1 was removed, 2 replaced, 3 moved, and
  // 5 put.
  Change moved = added(address(3), 3, 3);
  moved.segment = 5;
  writer.write({removed(address(1), 1), added(address(2), 9, 2), moved, added(address(5), 10)}, 10);
  EXPECT_EQ(writer.sequence(address(5)), 10u);
  EXPECT_EQ(writer.ask(address(4)), Answer::kUnknown);
  ASSERT_TRUE(builder.index.add_rows(
      {added(address(1), 1), added(address(2), 2), added(address(3), 3), added(address(4), 4)}));
  ASSERT_TRUE(builder.index.finish_building());
  EXPECT_TRUE(writer.index.has_all());
  EXPECT_EQ(writer.ask(address(1)), Answer::kAbsent);
  EXPECT_EQ(writer.ask(address(2)), Answer::kUnknown);  // two of one tag, for all it knows
  SharedIndex::Slot slot;
  ASSERT_EQ(writer.index.find(address(3), slot), Answer::kFound);
  EXPECT_EQ(slot.segment, 5u);
  EXPECT_EQ(writer.sequence(address(4)), 4u);
  EXPECT_EQ(writer.sequence(address(5)), 10u);
  EXPECT_EQ(writer.ask(address(6)), Answer::kAbsent);
}

TEST_F(SharedIndexTest, is_built_by_another_when_whoever_did_it_died) {
  testing::Pipe pipe;
  testing::ChildProcess child([&] {
    View builder(directory_);
    builder.index.discard();
    const bool is_started = builder.index.start_building(4, 4);
    pipe.write(is_started);
    ::pause();
    return 0;
  });
  bool is_started = false;
  ASSERT_TRUE(pipe.read(is_started));
  ASSERT_TRUE(is_started);
  View next(directory_);
  EXPECT_FALSE(next.index.needs_building());
  child.kill();
  child.wait();
  EXPECT_TRUE(next.index.needs_building());
  EXPECT_TRUE(next.index.start_building(4, 4));
}

TEST_F(SharedIndexTest, keeps_uses_and_sizes_and_loses_the_uses_of_what_was_replaced) {
  View writer(directory_);
  View reader(directory_);
  Change change = added(address(1), 7);
  change.size_bytes = 123456;
  writer.write({change});
  policy::Usage usage;
  usage.used_at = 42;
  usage.count = 3;
  reader.note_use(address(1), 6, usage);
  SharedIndex::Slot slot;
  ASSERT_EQ(writer.index.find(address(1), slot), Answer::kFound);
  EXPECT_EQ(slot.usage.used_at, 0u);
  reader.note_use(address(1), 7, usage);
  ASSERT_EQ(writer.index.find(address(1), slot), Answer::kFound);
  EXPECT_EQ(slot.usage.used_at, 42u);
  EXPECT_EQ(slot.usage.count, 3);
  EXPECT_GE(slot.size_bytes, 123456u);
  EXPECT_LE(slot.size_bytes, 123456u * 1.002);
}

TEST_F(SharedIndexTest, knows_sizes_a_little_too_large_and_never_too_small) {
  for (std::uint64_t size = 1; size < std::uint64_t{1} << 40; size = size * 3 / 2 + 1) {
    const std::uint64_t known = IndexTable::decode_size(IndexTable::encode_size(size));
    EXPECT_GE(known, size);
    EXPECT_LE(static_cast<double>(known), static_cast<double>(size) * 1.002 + 64);
  }
}

TEST_F(SharedIndexTest, answers_nothing_with_pread_and_is_written_all_the_same) {
  View pread(directory_, ReadVia::kPread);
  View mapped(directory_);
  pread.write({added(address(1), 7)});
  EXPECT_EQ(pread.ask(address(1)), Answer::kUnknown);
  EXPECT_EQ(mapped.sequence(address(1)), 7u);
}

TEST_F(SharedIndexTest, is_given_up_with_pread_when_somebody_cuts_it_short) {
  View pread(directory_, ReadVia::kPread);
  pread.write({added(address(1), 7)});
  ASSERT_TRUE(pread.index.has_all());
  std::filesystem::resize_file(directory_.index_map_path(), 0);
  EXPECT_FALSE(pread.index.has_all());
  pread.index.for_each([](const SharedIndex::Slot&) { ADD_FAILURE(); });
  EXPECT_TRUE(pread.index.needs_building());
}

TEST_F(SharedIndexTest, can_be_read_where_nothing_can_be_written) {
  View(directory_).write({added(address(1), 7)});
  View reader(directory_, ReadVia::kMmap, false);
  EXPECT_EQ(reader.sequence(address(1)), 7u);
  reader.note_use(address(1), 7, policy::Usage());
  EXPECT_FALSE(reader.index.needs_building());
}

TEST_F(SharedIndexTest, shares_the_state_of_policies_and_their_time) {
  View one(directory_);
  View other(directory_);
  EXPECT_EQ(one.index.policy_state(), nullptr);
  one.index.share_policy_state(false);
  EXPECT_EQ(one.index.policy_state(), nullptr);
  one.index.share_policy_state(true);
  other.index.share_policy_state(false);
  ASSERT_NE(other.index.policy_state(), nullptr);
  static_cast<char*>(one.index.policy_state())[policy::kSharedStateBytes - 1] = 'x';
  EXPECT_EQ(static_cast<char*>(other.index.policy_state())[policy::kSharedStateBytes - 1], 'x');
  EXPECT_EQ(one.index.tick(3), 3u);
  EXPECT_EQ(other.index.now(), 3u);
}

TEST_F(SharedIndexTest, never_shows_another_place_than_one_the_entry_had_while_it_is_written) {
  View writer(directory_);
  std::atomic<bool> is_done{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([this, &is_done] {
      View reader(directory_);
      std::uint64_t key = 0;
      while (!is_done) {
        // Checks that the place belongs to the sequence.
        (void)reader.sequence(address(++key % 400));
        reader.note_use(address(key % 400), key, policy::Usage());
      }
    });
  }
  Sequence sequence = 0;
  std::map<std::uint64_t, Sequence> known;
  for (int round = 0; round < 3000; ++round) {
    const std::uint64_t key = static_cast<std::uint64_t>(round) * 7 % 400;
    if (known.count(key) != 0 && round % 2 == 0) {
      writer.write({removed(address(key), known[key])});
      known.erase(key);
    } else {
      writer.write({added(address(key), ++sequence, known.count(key) != 0 ? known[key] : 0)});
      known[key] = sequence;
    }
  }
  is_done = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_F(SharedIndexTest, a_sample_visits_entries_that_are_there_and_not_always_the_same) {
  View view(directory_);
  std::vector<SharedIndex::Change> changes;
  for (std::uint64_t i = 1; i <= 2000; ++i) changes.push_back(added(address(i), i));
  view.write(changes, 2000);
  std::set<Sequence> seen;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    std::size_t visited = 0;
    view.index.sample(seed, 8, [&](const SharedIndex::Slot& slot) {
      ++visited;
      ASSERT_TRUE(slot.sequence >= 1 && slot.sequence <= 2000);
      EXPECT_EQ(slot.tag, address(slot.sequence).high);
      seen.insert(slot.sequence);
    });
    EXPECT_LE(visited, 8u);
    EXPECT_GE(visited, 4u);
  }
  EXPECT_GT(seen.size(), 500u);
}

}  // namespace
}  // namespace modcache::store
