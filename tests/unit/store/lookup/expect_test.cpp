// SPDX-License-Identifier: Apache-2.0
//
// What is known of entries without a look at their records: Store::sequences and expect.
#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "support/directory_bytes.h"
#include "support/fault_file_system.h"
#include "support/store_fixture.h"

namespace modcache::store {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::FaultFileSystem;
using ::testing::Field;
using ::testing::Ge;
using ::testing::IsEmpty;
using ::testing::Le;
using testing::open_store;
using testing::put;
using ::testing::SizeIs;

using Keys = std::vector<std::string_view>;

class ExpectTest : public testing::StoreTest {
 protected:
  static constexpr std::size_t kValueBytes = 100'000;
  static constexpr std::uint64_t kUnbounded = std::uint64_t{1} << 40;

  std::unique_ptr<Store> open() {
    StoreOptions options;
    options.directory = directory_.path();
    return open_store(std::move(options), files_);
  }
  // One after another in one segment.
  void fill(const Keys& keys) {
    auto store = open();
    for (const std::string_view key : keys) {
      const std::string text(kValueBytes, key.front());
      ASSERT_TRUE(put(*store, context_, std::string(key), text).is_ok());
    }
    ASSERT_TRUE(store->flush().is_ok());
  }
  std::size_t expect(Store& store, const Keys& keys, std::uint64_t most_bytes = kUnbounded) {
    (void)files_.take_expected();
    return store.expect({context_, keys, addresses_of(context_.digest, keys)}, most_bytes);
  }
  std::vector<Sequence> sequences(Store& store, const Keys& keys) {
    const auto addresses = addresses_of(context_.digest, keys);
    return store.sequences({context_, keys, addresses});
  }

  FaultFileSystem files_{fs::posix_file_system()};
};

TEST_F(ExpectTest, neighbours_are_read_in_one_piece_in_whatever_order_they_are_asked_for) {
  fill({"a", "b", "c", "d"});
  auto store = open();
  EXPECT_EQ(expect(*store, {"d", "b", "none", "a", "c"}), 5u);
  EXPECT_THAT(files_.take_expected(),
              ElementsAre(Field(&FaultFileSystem::Expected::size_bytes,
                                AllOf(Ge(4 * kValueBytes), Le(5 * kValueBytes)))));
}

TEST_F(ExpectTest, what_lies_apart_is_read_by_itself) {
  fill({"a", "b", "c"});
  auto store = open();
  expect(*store, {"c", "a"});
  EXPECT_THAT(files_.take_expected(), SizeIs(2));
}

TEST_F(ExpectTest, no_more_than_was_allowed_is_read_but_always_the_first) {
  fill({"a", "b", "c"});
  auto store = open();
  EXPECT_EQ(expect(*store, {"a", "b", "c"}, 5 * kValueBytes / 2), 2u);
  EXPECT_EQ(expect(*store, {"a", "b", "c"}, 1), 1u);
  EXPECT_THAT(files_.take_expected(), SizeIs(1));
}

TEST_F(ExpectTest, nothing_is_read_of_what_is_not_there) {
  fill({"a"});
  auto store = open();
  EXPECT_EQ(expect(*store, {"none", "nor this"}), 2u);
  EXPECT_THAT(files_.take_expected(), IsEmpty());
}

TEST_F(ExpectTest, sequences_are_those_that_a_lookup_finds_and_no_record_is_looked_at) {
  fill({"a", "b"});
  auto store = open();
  ASSERT_TRUE(put(*store, context_, "queued", "value").is_ok());
  // The sequence in the head of the first record, which is 128 bytes before its payload.
  const std::string segment = testing::segment_files(directory_.path()).front();
  const auto payload = testing::file_bytes(segment).find(std::string(kValueBytes, 'a'));
  ASSERT_NE(payload, std::string::npos);
  testing::flip_bit(segment, payload - 128 + 16);
  const std::vector<Sequence> known = sequences(*store, {"b", "none", "a", "queued"});
  EXPECT_EQ(known[1], 0u);
  const Keys there{"b", "a", "queued"};
  const FoundEntries found = store->find_all(context_, there);
  EXPECT_EQ(known[0], found.sequence(0));
  EXPECT_NE(known[2], 0u);
  EXPECT_FALSE(found.has(1));
  EXPECT_EQ(known[3], found.sequence(2));
}

}  // namespace
}  // namespace modcache::store
