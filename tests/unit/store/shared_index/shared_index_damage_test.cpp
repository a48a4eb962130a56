// SPDX-License-Identifier: Apache-2.0
//
// A shared index whose file is damaged: it answers less often, and never wrongly.
#include <random>
#include <string>
#include <vector>

#include "store/shared_index/shared_index.h"
#include "support/directory_bytes.h"
#include "support/shared_index_fixture.h"

namespace modcache::store {
namespace {

using testing::added;
using testing::address;
using testing::View;
using Answer = SharedIndex::Answer;
using Change = SharedIndex::Change;

class SharedIndexDamageTest : public testing::SharedIndexTest {};

TEST_F(SharedIndexDamageTest, refuses_a_file_that_is_cut_short_or_has_another_head) {
  View(directory_).write({added(address(1), 7)});
  const std::string bytes = testing::file_bytes(directory_.index_map_path());
  for (const std::size_t at : {0u, 8u, 16u, 24u, 32u, 48u, 64u, 72u}) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    testing::write_file(directory_.index_map_path(), damaged);
    EXPECT_EQ(View(directory_).ask(address(1)), Answer::kUnknown) << at;
  }
  for (const std::size_t size : {0u, 100u, 4096u, 8192u}) {
    testing::write_file(directory_.index_map_path(), bytes.substr(0, size));
    EXPECT_EQ(View(directory_).ask(address(1)), Answer::kUnknown) << size;
  }
  testing::write_file(directory_.index_map_path(), bytes);
  EXPECT_EQ(View(directory_).sequence(address(1)), 7u);
}

// No checksum covers the counts of entries and of listed segments, and they determine the size of
// the next file.
TEST_F(SharedIndexDamageTest, makes_no_large_file_for_a_damaged_count) {
  std::vector<Change> changes;
  for (Sequence i = 1; i <= 300; ++i) changes.push_back(added(address(i), i));
  View first(directory_);
  first.write(changes);
  const std::uint64_t generation = first.control->index_generation();
  const std::string bytes = testing::file_bytes(directory_.index_map_path());
  for (const std::size_t count : {144u, 160u}) {
    for (std::size_t bit = 0; bit < 64; ++bit) {
      std::string damaged = bytes;
      damaged[count + bit / 8] = static_cast<char>(damaged[count + bit / 8] ^ (1 << bit % 8));
      testing::write_file(directory_.index_map_path(), damaged);
      View view(directory_);
      view.control->set_index_generation(generation);
      std::vector<Change> more;
      for (Sequence i = 1000; i < 1700; ++i) more.push_back(added(address(i), i));
      view.write(more);
      EXPECT_LE(testing::file_bytes(directory_.index_map_path()).size(), 4 * bytes.size()) << bit;
      EXPECT_NE(view.ask(address(1000)), Answer::kAbsent) << bit;
      EXPECT_NE(view.ask(address(1)), Answer::kAbsent) << bit;
    }
    testing::write_file(directory_.index_map_path(), bytes);
  }
}

// A damaged slot must not turn an entry that exists into a miss.
TEST_F(SharedIndexDamageTest, says_nothing_of_what_a_damaged_slot_may_hide) {
  std::vector<Change> changes;
  for (Sequence i = 1; i <= 500; ++i) changes.push_back(added(address(i), i));
  View(directory_).write(changes);
  const std::string bytes = testing::file_bytes(directory_.index_map_path());
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    std::string damaged = bytes;
    const std::size_t slots = 4096 + 8192;
    std::size_t at = slots + random() % (bytes.size() - slots);
    if (at % 32 >= 24) at -= 8;  // of the use of an entry nothing depends
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << random() % 8));
    testing::write_file(directory_.index_map_path(), damaged);
    View view(directory_);
    for (Sequence i = 1; i <= 500; ++i) {
      SharedIndex::Slot slot;
      const Answer answer = view.index.find(address(i), slot);
      ASSERT_NE(answer, Answer::kAbsent) << at;
      if (answer == Answer::kFound) {
        ASSERT_EQ(slot.sequence, i) << at;
      }
    }
  }
}

}  // namespace
}  // namespace modcache::store
