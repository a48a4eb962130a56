// SPDX-License-Identifier: Apache-2.0
#include "store/write/index_mirror.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "support/store_parts.h"

namespace modcache::store {
namespace {

using testing::StoreParts;

class IndexMirrorTest : public testing::StorePartsTest {
 protected:
  void discard_index(StoreParts& parts) {
    MutexLock lock(parts.committer.mutex());
    auto directory_lock = parts.committer.lock_directory();
    ASSERT_TRUE(directory_lock.is_ok());
    parts.attached.index().discard();
  }
};

TEST_F(IndexMirrorTest, makes_the_table_of_a_small_directory_at_once) {
  fill(3);
  StoreParts parts(options_);
  discard_index(parts);
  EXPECT_FALSE(parts.attached.index().has_all());
  parts.mirror.prepare(0);
  EXPECT_TRUE(parts.attached.index().has_all());
  EXPECT_EQ(parts.attached.index().entries(), 3);
}

TEST_F(IndexMirrorTest, shares_what_policies_note_only_in_a_large_directory) {
  StoreParts small(options_);
  small.mirror.prepare(0);
  EXPECT_EQ(small.attached.index().policy_state(), nullptr);
  StoreParts large(options_);
  large.mirror.prepare(std::uint64_t{1} << 30);
  EXPECT_NE(large.attached.index().policy_state(), nullptr);
}

TEST_F(IndexMirrorTest, makes_a_table_part_by_part_while_others_write) {
  fill(3);
  StoreParts parts(options_);
  discard_index(parts);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  parts.mirror.build_part();
  EXPECT_TRUE(parts.mirror.is_building());
  fill(5);
  while (!parts.attached.index().has_all() && std::chrono::steady_clock::now() < deadline) {
    parts.mirror.build_part();
  }
  EXPECT_FALSE(parts.mirror.is_building());
  EXPECT_EQ(parts.attached.index().entries(), 5);
}

}  // namespace
}  // namespace modcache::store
