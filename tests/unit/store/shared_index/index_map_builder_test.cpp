// SPDX-License-Identifier: Apache-2.0
#include "store/shared_index/index_map_builder.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "store/index/index.h"
#include "store/queue/write_queue.h"
#include "support/shared_index_fixture.h"
#include "support/store_fixture.h"

namespace modcache::store {
namespace {

using testing::View;

// A directory with more rows than one read takes.
class IndexMapBuilderTest : public testing::SharedIndexTest {
 protected:
  static constexpr Sequence kRows = 10'000;

  IndexMapBuilderTest() {
    fs::FileSystem& files = directory_.file_system();
    EXPECT_TRUE(Index::create(files, directory_.database_path()).is_ok());
    index_ = Index::open(files, directory_.database_path(), Database::Mode::kWrite, 1000).value();
    for (Sequence i = 1; i <= kRows; ++i) keys_.push_back("key " + std::to_string(i));
    std::vector<NewRow> rows;
    for (Sequence i = 1; i <= kRows; ++i) rows.push_back(row(keys_[i - 1], i));
    EXPECT_TRUE(index_->commit(rows).is_ok());
  }

  NewRow row(const std::string& key, Sequence sequence, std::uint64_t segment = 1) const {
    return {&context_, key, {segment, 64 * sequence, 3, 5, sequence, 7}, 1000};
  }
  Digest128 address(const std::string& key) const { return address_of(context_.digest, key); }
  SharedIndex::Answer find(const View& view, const std::string& key, Sequence& sequence) const {
    SharedIndex::Slot slot;
    const SharedIndex::Answer answer = view.index.find(address(key), slot);
    sequence = slot.sequence;
    return answer;
  }
  // Puts an entry as a store does: into the database, and into the table.
  void put(View& view, const std::string& key, Sequence sequence, Sequence instead_of) {
    ASSERT_TRUE(index_->commit({row(key, sequence, 9)}).is_ok());
    SharedIndex::Change change;
    change.address = address(key);
    change.segment = 9;
    change.offset = 64 * sequence;
    change.sequence = sequence;
    change.size_bytes = 128;
    change.instead_of = instead_of;
    view.write({change}, sequence);
  }
  void drop(View& view, const std::string& key, Sequence sequence) {
    ASSERT_TRUE(index_->drop(context_.digest, key, sequence).value());
    SharedIndex::Change change;
    change.address = address(key);
    change.sequence = sequence;
    view.write({change});
  }

  const Context context_ = testing::context_named("scope");
  std::unique_ptr<Index> index_;
  std::vector<std::string> keys_;
};

TEST_F(IndexMapBuilderTest, lets_the_log_be_emptied_between_two_parts) {
  View view(directory_);
  view.index.discard();
  auto builder = IndexMapBuilder::start(directory_, view.index, 1000);
  ASSERT_TRUE(builder.is_ok());
  int parts = 0;
  for (; !view.index.has_all(); ++parts) {
    ASSERT_TRUE(builder.value()->read_rows().is_ok());
    put(view, "new " + std::to_string(parts), kRows + 1 + static_cast<Sequence>(parts), 0);
    EXPECT_TRUE(index_->checkpoint().value()) << parts;
    ASSERT_TRUE(builder.value()->add_rows());
  }
  EXPECT_GT(parts, 2);
  Sequence sequence = 0;
  for (Sequence i = 1; i <= kRows; ++i) {
    ASSERT_EQ(find(view, keys_[i - 1], sequence), SharedIndex::Answer::kFound);
    ASSERT_EQ(sequence, i);
  }
  for (int i = 0; i < parts; ++i) {
    ASSERT_EQ(find(view, "new " + std::to_string(i), sequence), SharedIndex::Answer::kFound);
  }
  EXPECT_EQ(find(view, "no such key", sequence), SharedIndex::Answer::kAbsent);
}

// Every change before, during and after the reading of its part is found in its latest state, or
// left to the database.
TEST_F(IndexMapBuilderTest, knows_what_changed_meanwhile) {
  View view(directory_);
  view.index.discard();
  auto builder = IndexMapBuilder::start(directory_, view.index, 1000);
  ASSERT_TRUE(builder.is_ok());
  Sequence next = kRows + 1;
  Sequence key = 1;
  std::vector<Sequence> replaced;
  std::vector<Sequence> dropped;
  const auto change_some = [&] {
    for (int i = 0; i < 50; ++i, key += 20) {
      replaced.push_back(key);
      put(view, keys_[key - 1], next++, key);
      dropped.push_back(key + 1);
      drop(view, keys_[key], key + 1);
    }
  };
  while (!view.index.has_all()) {
    change_some();
    ASSERT_TRUE(builder.value()->read_rows().is_ok());
    change_some();
    ASSERT_TRUE(builder.value()->add_rows());
  }
  Sequence sequence = 0;
  for (const Sequence i : replaced) {
    const auto answer = find(view, keys_[i - 1], sequence);
    ASSERT_NE(answer, SharedIndex::Answer::kAbsent) << i;
    EXPECT_TRUE(answer != SharedIndex::Answer::kFound || sequence > kRows) << i;
  }
  for (const Sequence i : dropped) {
    ASSERT_NE(find(view, keys_[i - 1], sequence), SharedIndex::Answer::kFound) << i;
  }
}

}  // namespace
}  // namespace modcache::store
