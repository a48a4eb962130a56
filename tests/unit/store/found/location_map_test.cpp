// SPDX-License-Identifier: Apache-2.0
#include "store/found/location_map.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace modcache::store {
namespace {

class LocationMapTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kRemovals = 5;

  KnownRecord record(Sequence sequence, const std::string& header = "header") {
    return {7, 64 * sequence, sequence, 3, 100 + sequence, 11 * sequence, map_.intern(header)};
  }
  void add(const Digest128& address, Sequence sequence) {
    map_.add(address, record(sequence), kRemovals);
  }
  std::optional<KnownRecord> find(
      const Digest128& address, std::uint64_t removals,
      const LocationMap::IsStillThere& is_still_there = LocationMap::is_unknown) {
    std::optional<KnownRecord> known;
    const auto take = [&known](std::size_t, const LocationMap::Visited& record) {
      known = KnownRecord{record.segment,
                          record.offset,
                          record.sequence,
                          record.run_us,
                          record.payload_size_bytes,
                          record.payload_checksum,
                          record.header,
                          record.payload_is_verified,
                          record.own_part_bytes};
    };
    map_.find_all(std::span<const Digest128>(&address, 1), removals, take, is_still_there);
    return known;
  }
  // 0: not known.
  Sequence found(const Digest128& address, std::uint64_t removals = kRemovals) {
    const auto known = find(address, removals);
    return known ? known->sequence : 0;
  }

  // Of what intern() gave: the bytes of the texts that the map still has.
  static std::size_t bytes_alive(const std::vector<std::weak_ptr<const std::string>>& headers) {
    std::size_t size_bytes = 0;
    for (const auto& header : headers) {
      if (const SharedHeader alive = header.lock()) size_bytes += alive->size();
    }
    return size_bytes;
  }
  // Different for each number.
  static std::string long_header(std::size_t number) {
    return std::to_string(number) + std::string(LocationMap::kMostHeaderBytes - 8, 'h');
  }

  LocationMap map_;
};

TEST_F(LocationMapTest, gives_back_all_of_a_record) {
  map_.add({1, 2}, record(9), kRemovals);
  const auto known = find({1, 2}, kRemovals);
  ASSERT_TRUE(known);
  EXPECT_EQ(known->segment, 7u);
  EXPECT_EQ(known->offset, 576u);
  EXPECT_EQ(known->sequence, 9u);
  EXPECT_EQ(known->run_us, 3);
  EXPECT_EQ(known->payload_size_bytes, 109u);
  EXPECT_EQ(known->payload_checksum, 99u);
  EXPECT_EQ(*known->header, "header");
  EXPECT_FALSE(known->payload_is_verified);
  EXPECT_EQ(found({2, 1}), 0u);
}

TEST_F(LocationMapTest, one_text_has_one_header) {
  EXPECT_EQ(map_.intern("a"), map_.intern(std::string("a")));
  EXPECT_NE(map_.intern("a"), map_.intern("b"));
  map_.add({1, 2}, record(9, "a"), kRemovals);
  EXPECT_EQ(find({1, 2}, kRemovals)->header, map_.intern("a"));
  EXPECT_EQ(found({1, 2}, kRemovals + 1), 0u);
  EXPECT_EQ(map_.intern("a"), map_.intern("a")) << "also after all was forgotten";
}

TEST_F(LocationMapTest, believes_nothing_when_something_was_removed_and_takes_nothing_older) {
  add({1, 2}, 9);
  EXPECT_EQ(found({1, 2}, 0), 0u) << "0: the counter could not be read";
  EXPECT_EQ(found({1, 2}, kRemovals - 1), 9u) << "read before somebody else read a larger one";
  EXPECT_EQ(found({1, 2}, kRemovals + 1), 0u);
  add({1, 2}, 9);
  EXPECT_EQ(found({1, 2}, kRemovals + 1), 0u) << "the location is from before the removal";
}

TEST_F(LocationMapTest, believes_what_is_confirmed_after_a_removal_and_asks_once_for_each) {
  add({1, 2}, 9);
  add({3, 4}, 10);
  map_.note_verified({{{1, 2}, 7, 9}});
  int asked = 0;
  const auto first_is_there = [&asked](const Digest128& address, std::uint64_t segment,
                                       std::uint64_t offset, Sequence sequence) {
    ++asked;
    return address == Digest128{1, 2} && segment == 7 && offset == 576 && sequence == 9;
  };
  const auto known = find({1, 2}, kRemovals + 1, first_is_there);
  ASSERT_TRUE(known);
  EXPECT_TRUE(known->payload_is_verified);
  EXPECT_FALSE(find({3, 4}, kRemovals + 1, first_is_there));
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(found({1, 2}, kRemovals + 1), 9u);
  EXPECT_EQ(found({3, 4}, kRemovals + 1), 0u);
  EXPECT_EQ(found({1, 2}, kRemovals + 2), 0u) << "the next removal may be of this one";
  map_.add({3, 4}, record(11), kRemovals + 2);
  EXPECT_EQ(found({3, 4}, kRemovals + 2), 11u);
}

// There are 65,536 of what tells records before and after a removal apart.
TEST_F(LocationMapTest, takes_nothing_for_newer_after_very_many_removals) {
  add({1, 2}, 9);
  for (std::uint64_t more = 1; more <= 70000; ++more) {
    ASSERT_EQ(found({1, 2}, kRemovals + more), 0u) << more;
  }
}

TEST_F(LocationMapTest, remembers_what_was_verified_of_this_very_record) {
  add({1, 2}, 9);
  map_.note_verified({{{1, 2}, 7, 8}, {{3, 4}, 7, 9}, {{1, 2}, 6, 9}});
  EXPECT_FALSE(find({1, 2}, kRemovals)->payload_is_verified);
  map_.note_verified({{{1, 2}, 7, 9}});
  EXPECT_TRUE(find({1, 2}, kRemovals)->payload_is_verified);
  add({1, 2}, 10);
  EXPECT_FALSE(find({1, 2}, kRemovals)->payload_is_verified);
}

TEST_F(LocationMapTest, visits_the_known_ones_of_many) {
  add({1, 1}, 4);
  add({1, 3}, 5);
  std::map<std::size_t, Sequence> visited;
  const std::vector<Digest128> addresses{{1, 1}, {1, 2}, {1, 3}};
  map_.find_all(addresses, kRemovals, [&](std::size_t i, const LocationMap::Visited& record) {
    visited[i] = record.sequence;
  });
  EXPECT_EQ(visited, (std::map<std::size_t, Sequence>{{0, 4}, {2, 5}}));
}

TEST_F(LocationMapTest, agrees_with_a_plain_map_whatever_is_added_and_removed) {
  std::mt19937 random(1);
  std::map<std::uint64_t, Sequence> expected;
  // Few different homes, so that records push each other on, and over the table's end.
  const auto address = [](std::uint64_t number) {
    return Digest128{number, number % 5 == 0 ? ~std::uint64_t{0} - number % 3 : number % 97};
  };
  for (Sequence turn = 1; turn <= 20000; ++turn) {
    const std::uint64_t number = random() % 3000;
    if (random() % 3 == 0) {
      map_.remove(address(number));
      expected.erase(number);
    } else {
      add(address(number), turn);
      expected[number] = turn;
    }
  }
  for (std::uint64_t number = 0; number < 3000; ++number) {
    const auto entry = expected.find(number);
    ASSERT_EQ(found(address(number)), entry == expected.end() ? 0 : entry->second) << number;
  }
}

TEST_F(LocationMapTest, is_bounded) {
  std::mt19937_64 random(1);
  std::vector<Digest128> addresses;
  std::vector<LocationMap::NewRecord> records;
  for (Sequence i = 1; i <= 500000; ++i) {
    addresses.push_back({random(), random()});
    records.push_back({addresses.back(), record(1)});
  }
  map_.add_all(records, kRemovals);
  std::size_t known = 0;
  map_.find_all(addresses, kRemovals,
                [&known](std::size_t, const LocationMap::Visited&) { ++known; });
  EXPECT_LT(known, 400000u);
  EXPECT_EQ(found(addresses.back()), 1u) << "what came last is known";
}

TEST_F(LocationMapTest, headers_are_bounded_by_their_bytes) {
  std::vector<std::weak_ptr<const std::string>> headers;
  for (Sequence i = 1; i <= 6000; ++i) {
    KnownRecord added = record(i, long_header(i));
    headers.push_back(added.header);
    map_.add({i, i}, added, kRemovals);
  }
  EXPECT_LE(bytes_alive(headers), LocationMap::kMostHeadersBytes);
  EXPECT_GT(bytes_alive(headers), 0u);
  EXPECT_EQ(*find({6000, 6000}, kRemovals)->header, long_header(6000));
}

TEST_F(LocationMapTest, headers_of_puts_are_bounded_and_push_out_no_record) {
  add({1, 2}, 9);
  std::vector<std::weak_ptr<const std::string>> headers;
  for (std::size_t i = 0; i < 6000; ++i) {
    const SharedHeader header = map_.intern(long_header(i));
    ASSERT_EQ(*header, long_header(i));
    headers.push_back(header);
  }
  EXPECT_LE(bytes_alive(headers), LocationMap::kMostHeadersBytes);
  EXPECT_EQ(found({1, 2}), 9u);
  EXPECT_EQ(*find({1, 2}, kRemovals)->header, "header");
}

TEST_F(LocationMapTest, takes_its_first_record_when_there_is_no_room_for_another_header) {
  for (int i = 0; i < 200000; ++i) map_.intern(std::to_string(i));
  map_.add({1, 2}, record(9, "new"), kRemovals);
  EXPECT_EQ(found({1, 2}), 9u);
  EXPECT_EQ(*find({1, 2}, kRemovals)->header, "new");
}

TEST_F(LocationMapTest, keeps_no_record_with_a_large_header) {
  const std::string large(LocationMap::kMostHeaderBytes + 1, 'h');
  std::weak_ptr<const std::string> header = map_.intern(large);
  EXPECT_TRUE(header.expired());
  add({1, 2}, 9);
  map_.add({1, 2}, record(10, large), kRemovals);
  EXPECT_EQ(*record(10, large).header, large);
  EXPECT_EQ(found({1, 2}), 0u) << "nor the older one";
  map_.add({1, 2}, record(11, large.substr(1)), kRemovals);
  EXPECT_EQ(found({1, 2}), 11u);
}

}  // namespace
}  // namespace modcache::store
