// SPDX-License-Identifier: Apache-2.0
#include "store/found/received_rows.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/store_fixture.h"

namespace modcache::store {
namespace {

// Bytes that came in one piece, as a record does: a header and a payload, and who keeps them.
struct ReceivedBytes {
  std::shared_ptr<const std::string> bytes;
  std::size_t header_bytes = 0;

  ReceivedBytes(const std::string& header, const std::string& payload)
      : bytes(std::make_shared<const std::string>(header + payload)), header_bytes(header.size()) {}

  ReceivedRows::Entry entry(std::int64_t run_us = 5, std::int64_t stored_at_us = 6) const {
    const std::string_view all = *bytes;
    const std::string_view payload = all.substr(header_bytes);
    return {all.substr(0, header_bytes),
            {bytes, reinterpret_cast<const std::byte*>(payload.data()), payload.size()},
            run_us,
            stored_at_us};
  }
};

std::string read_row(const FoundEntries& found, std::size_t i) {
  std::string payload(found.payload_size_bytes(i), '?');
  const Status status = found.read(i, payload.data());
  return status.is_ok() ? payload : "<" + status.message() + ">";
}

std::vector<Digest128> addresses(std::size_t count) {
  std::vector<Digest128> all;
  for (std::size_t i = 0; i < count; ++i) all.push_back({i, i});
  return all;
}

class ReceivedRowsTest : public testing::StoreTest {
 protected:
  // Entries of a directory: a put of its own each, which is on disk.
  std::unique_ptr<Store> filled_store(const std::string& name) {
    auto store = testing::open_store(directory_ / name);
    EXPECT_TRUE(testing::put(*store, context_, "key", name + " value", name + " header").is_ok());
    EXPECT_TRUE(store->flush().is_ok());
    return store;
  }
};

TEST_F(ReceivedRowsTest, rows_that_were_not_added_are_not_there) {
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{3}}) {
    const FoundEntries found = ReceivedRows(addresses(count)).finish();
    ASSERT_EQ(found.size(), count);
    for (std::size_t i = 0; i < count; ++i) EXPECT_FALSE(found.has(i));
    EXPECT_TRUE(found.failures().empty());
    EXPECT_TRUE(found.index_status().is_ok());
  }
}

TEST_F(ReceivedRowsTest, a_row_that_was_added_is_found_with_all_that_was_received) {
  ReceivedRows rows(addresses(3));
  rows.add(1, ReceivedBytes("header", "the payload").entry(7, 8));
  const FoundEntries found = std::move(rows).finish();
  EXPECT_FALSE(found.has(0) || found.has(2));
  ASSERT_TRUE(found.has(1));
  EXPECT_EQ(found.sequence(1), ReceivedRows::kSequence);
  EXPECT_EQ(*found.header(1), "header");
  EXPECT_EQ(found.own(1), "");
  EXPECT_EQ(found.payload_size_bytes(1), 11u);
  EXPECT_EQ(found.run_us(1), 7);
  EXPECT_EQ(found.stored_at_us(1), 8);
  EXPECT_EQ(read_row(found, 1), "the payload");
}

TEST_F(ReceivedRowsTest, the_payload_is_served_from_the_received_bytes_and_outlives_the_rows) {
  SharedBytes payload;
  std::weak_ptr<const std::string> bytes;
  {
    const ReceivedBytes received("header", "the payload");
    bytes = received.bytes;
    ReceivedRows rows(addresses(1));
    rows.add(0, received.entry());
    const FoundEntries found = std::move(rows).finish();
    EXPECT_EQ(reinterpret_cast<const char*>(found.verified_bytes(0)), received.bytes->data() + 6);
    EXPECT_EQ(found.map_copy(0).value(), nullptr) << "it has to be read";
    payload = found.received_payload(0);
  }
  EXPECT_FALSE(bytes.expired()) << "the payload keeps what was received";
  EXPECT_EQ(payload.view(), "the payload");
  payload = {};
  EXPECT_TRUE(bytes.expired());
}

TEST_F(ReceivedRowsTest, an_empty_payload_and_an_empty_header_are_an_entry) {
  ReceivedRows rows(addresses(1));
  rows.add(0, ReceivedBytes("", "").entry());
  const FoundEntries found = std::move(rows).finish();
  ASSERT_TRUE(found.has(0));
  EXPECT_EQ(*found.header(0), "");
  EXPECT_EQ(read_row(found, 0), "");
}

TEST_F(ReceivedRowsTest, own_parts_are_taken_off_and_stay_readable) {
  const std::string longest(kMostOwnBytes, 'o');
  FoundEntries found;
  {
    ReceivedRows rows(addresses(2));
    rows.add(0, ReceivedBytes(own_part_of("mine") + "header", "a").entry());
    rows.add(1, ReceivedBytes(own_part_of(longest) + "header", "b").entry());
    found = std::move(rows).finish();
  }
  EXPECT_EQ(found.own(0), "mine");
  EXPECT_EQ(found.own(1), longest);
  EXPECT_EQ(*found.header(0), "header");
  EXPECT_EQ(found.header_index(0), found.header_index(1)) << "which is made into something once";
}

// The size of an own part is a stranger's word.
TEST_F(ReceivedRowsTest, an_own_part_that_reaches_too_far_is_part_of_the_header) {
  for (const std::string& header :
       {own_part_of("mine").substr(0, 6), std::string("\xff\xff\xff\xff rest"),
        std::string("\x3c\0\0\x80", 4) + std::string(100, 'x'), std::string("\0\0\x80", 3)}) {
    ReceivedRows rows(addresses(1));
    rows.add(0, ReceivedBytes(header, "payload").entry());
    const FoundEntries found = std::move(rows).finish();
    EXPECT_EQ(found.own(0), "");
    EXPECT_EQ(*found.header(0), header);
  }
}

TEST_F(ReceivedRowsTest, headers_are_kept_once_for_rows_that_follow_each_other) {
  ReceivedRows rows(addresses(4));
  const std::vector<std::string> headers = {"a", "a", "b", "a"};
  for (std::size_t i = 0; i < headers.size(); ++i)
    rows.add(i, ReceivedBytes(headers[i], "p").entry());
  const FoundEntries found = std::move(rows).finish();
  EXPECT_EQ(found.header_index(0), found.header_index(1));
  for (std::size_t i = 0; i < headers.size(); ++i) {
    EXPECT_EQ(*found.header(i), headers[i]);
    EXPECT_EQ(found.headers()[found.header_index(i)], found.header(i));
  }
}

TEST_F(ReceivedRowsTest, looking_once_more_finds_them_verified_as_there_is_no_file_to_look_at) {
  ReceivedRows rows(addresses(1));
  rows.add(0, ReceivedBytes("header", "payload").entry());
  FoundEntries found = std::move(rows).finish();
  found.verify_again(0);
  EXPECT_EQ(read_row(found, 0), "payload");
}

TEST_F(ReceivedRowsTest, rows_are_appended_with_their_headers_and_payloads) {
  FoundEntries all;
  for (const std::string& name : {std::string("a"), std::string("b"), std::string("c")}) {
    ReceivedRows rows(addresses(2));
    rows.add(
        1, ReceivedBytes(own_part_of("own " + name) + "header " + name, "payload " + name).entry());
    all.append(std::move(rows).finish());
  }
  ASSERT_EQ(all.size(), 6u);
  for (std::size_t i = 0; i < 3; ++i) {
    const std::string name(1, static_cast<char>('a' + i));
    EXPECT_FALSE(all.has(2 * i));
    const std::size_t row = 2 * i + 1;
    EXPECT_EQ(*all.header(row), "header " + name);
    EXPECT_EQ(all.own(row), "own " + name);
    EXPECT_EQ(read_row(all, row), "payload " + name);
    EXPECT_EQ(all.received_payload(row).view(), "payload " + name);
  }
}

TEST_F(ReceivedRowsTest, rows_of_a_directory_and_received_ones_do_not_mix_up_what_keeps_them) {
  const auto store = filled_store("disk");
  for (const bool is_disk_first : {false, true}) {
    ReceivedRows rows(addresses(1));
    rows.add(0, ReceivedBytes("received header", "received value").entry());
    FoundEntries received = std::move(rows).finish();
    FoundEntries on_disk = store->find_all(context_, {"key", "missing"});
    FoundEntries all = is_disk_first ? std::move(on_disk) : std::move(received);
    all.append(is_disk_first ? std::move(received) : std::move(on_disk));
    ASSERT_EQ(all.size(), 3u);
    const std::size_t disk_row = is_disk_first ? 0 : 1;
    const std::size_t received_row = is_disk_first ? 2 : 0;
    EXPECT_FALSE(all.has(disk_row + 1));
    EXPECT_EQ(*all.header(disk_row), "disk header");
    EXPECT_EQ(read_row(all, disk_row), "disk value");
    EXPECT_EQ(all.received_payload(disk_row).owner, nullptr);
    EXPECT_EQ(*all.header(received_row), "received header");
    EXPECT_EQ(read_row(all, received_row), "received value");
    EXPECT_EQ(all.received_payload(received_row).view(), "received value");
  }
}

TEST_F(ReceivedRowsTest, what_was_read_of_a_directory_before_it_is_appended_counts_as_read) {
  const auto store = testing::open_store(directory_ / "first");
  ASSERT_TRUE(testing::put(*store, context_, "key", "value").is_ok());
  ASSERT_TRUE(store->flush().is_ok());
  {
    FoundEntries found = store->find_all(context_, {"key"});
    EXPECT_EQ(found.verified_bytes(0), nullptr) << "nobody has read it yet";
    EXPECT_EQ(read_row(found, 0), "value");
    FoundEntries all;
    all.append(std::move(found));
    EXPECT_EQ(read_row(all, 0), "value");
  }
  EXPECT_NE(store->find_all(context_, {"key"}).verified_bytes(0), nullptr);
}

// Each store remembers what was read of its own segments.
TEST_F(ReceivedRowsTest, rows_of_two_directories_are_read_each_in_its_own) {
  const auto one = filled_store("one");
  const auto two = filled_store("two");
  FoundEntries all = one->find_all(context_, {"key"});
  all.append(two->find_all(context_, {"key"}));
  EXPECT_EQ(read_row(all, 0), "one value");
  EXPECT_EQ(read_row(all, 1), "two value");
  all.note_verified();
  EXPECT_EQ(testing::get(*one, context_, "key"), "one value");
  EXPECT_EQ(testing::get(*two, context_, "key"), "two value");
}

}  // namespace
}  // namespace modcache::store
