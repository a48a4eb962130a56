// SPDX-License-Identifier: Apache-2.0
//
// Packs that were cut short, damaged, or constructed to do harm: every result is right, or a miss.
#include <gmock/gmock.h>

#include <filesystem>
#include <random>
#include <string>

#include "store/pack/pack_reader.h"
#include "store/queue/write_queue.h"
#include "support/directory_bytes.h"
#include "support/pack_fixture.h"

namespace modcache::store {
namespace {

using testing::file_bytes;
using testing::get;
using testing::open_store;
using testing::write_file;

constexpr int kPackedEntries = 200;

class PackDamageTest : public testing::PackTest {
 protected:
  PackDamageTest() {
    fill(kPackedEntries);
    pack();
    bytes_ = file_bytes(file_);
  }

  // Returns how many entries are still there. Any wrong result fails the test.
  int count_right(ReadVia read_via = ReadVia::kMmap) {
    auto store = Store::open(files_, options_of(file_, read_via));
    if (!store.is_ok()) return 0;
    int right = 0;
    std::vector<std::string> keys;
    for (int i = 0; i < kPackedEntries; ++i) {
      keys.push_back(key_of(i));
      const std::string found = get(*store.value(), context_, key_of(i));
      if (found == value_of(i)) ++right;
      EXPECT_TRUE(found == value_of(i) || found.front() == '<') << found;
    }
    const FoundEntries found = store.value()->find_all(context_, {keys.begin(), keys.end()});
    int right_at_once = 0;
    for (int i = 0; i < kPackedEntries; ++i) {
      const auto row = static_cast<std::size_t>(i);
      if (!found.has(row)) continue;
      std::string payload(found.payload_size_bytes(row), '?');
      if (!found.read(row, payload.data()).is_ok()) continue;
      EXPECT_EQ(payload, value_of(i));
      ++right_at_once;
    }
    EXPECT_EQ(right_at_once, right);
    return right;
  }

  std::uint64_t footer_offset() const { return bytes_.size() - kPackFooterSizeBytes; }
  PackFooter footer() const {
    return decode_pack_footer(std::string_view(bytes_).substr(footer_offset()), bytes_.size())
        .value();
  }
  std::uint64_t salt() const { return decode_segment_header(bytes_).value().salt; }
  // Replaces the table of the pack by another one with right checksums.
  void write_with_slots(const std::vector<PackSlot>& slots) {
    const PackFooter was = footer();
    std::string bytes = bytes_.substr(0, was.table_offset);
    for (std::uint64_t page = 0; page < was.pages; ++page) {
      bytes += encode_pack_page(page, slots, salt());
    }
    write_file(file_, bytes + bytes_.substr(footer_offset()));
  }

  std::string bytes_;
};

TEST_F(PackDamageTest, undamaged_all_are_there) { EXPECT_EQ(count_right(), kPackedEntries); }

TEST_F(PackDamageTest, cut_short_anywhere_it_is_no_pack) {
  for (std::size_t size = 0; size < bytes_.size(); size += 4096) {
    write_file(file_, bytes_.substr(0, size));
    EXPECT_FALSE(Store::open(files_, options_of(file_)).is_ok()) << size;
    EXPECT_FALSE(unpack_into(files_, file_, options_of(other_)).is_ok()) << size;
  }
  for (const std::size_t less : {1, 64, 127, 128, 129}) {
    write_file(file_, bytes_.substr(0, bytes_.size() - less));
    EXPECT_FALSE(Store::open(files_, options_of(file_)).is_ok()) << less;
  }
  write_file(file_, bytes_ + '\0');
  EXPECT_FALSE(Store::open(files_, options_of(file_)).is_ok());
  EXPECT_FALSE(std::filesystem::exists(other_));
}

TEST_F(PackDamageTest, cut_short_while_it_is_open_its_entries_are_misses) {
  for (const ReadVia read_via : {ReadVia::kMmap, ReadVia::kPread}) {
    write_file(file_, bytes_);
    auto store = open_pack_file(read_via);
    EXPECT_EQ(get(*store, context_, key_of(1)), value_of(1));
    std::filesystem::resize_file(file_, 4096);
    for (int i = 0; i < kPackedEntries; ++i) {
      const std::string found = get(*store, context_, key_of(i));
      EXPECT_TRUE(found == value_of(i) || found.front() == '<') << found;
    }
  }
}

TEST_F(PackDamageTest, flipped_bits_cost_no_more_than_what_they_struck) {
  std::mt19937_64 random(7);
  for (int times = 0; times < 300; ++times) {
    write_file(file_, bytes_);
    const std::uint64_t offset = random() % bytes_.size();
    testing::flip_bit(file_, offset);
    const int right = count_right(times % 2 == 0 ? ReadVia::kMmap : ReadVia::kPread);
    const bool is_in_a_record = offset >= kSegmentHeaderSizeBytes && offset < footer().table_offset;
    if (is_in_a_record) {
      EXPECT_GE(right, kPackedEntries - 1) << offset;
    }
    if (times % 20 != 0) continue;
    const auto summary = unpack_into(files_, file_, options_of(other_));
    if (is_in_a_record && right < kPackedEntries) {
      EXPECT_EQ(summary.value().broken, 1) << offset;
    }
    std::filesystem::remove_all(other_);
  }
}

TEST_F(PackDamageTest, many_flipped_bits_at_once_return_nothing_wrong) {
  std::mt19937_64 random(8);
  for (int times = 0; times < 20; ++times) {
    std::string bytes = bytes_;
    for (int flips = 0; flips < 200; ++flips) {
      char& byte = bytes[random() % footer_offset()];
      byte = static_cast<char>(byte ^ (1 << (random() % 8)));
    }
    write_file(file_, bytes);
    (void)count_right();
    (void)unpack_into(files_, file_, options_of(other_));
    auto store = open_store(other_);
    for (int i = 0; i < kPackedEntries; ++i) {
      const std::string found = get(*store, context_, key_of(i));
      EXPECT_TRUE(found == value_of(i) || found == "<missing>") << found;
    }
    store = nullptr;
    std::filesystem::remove_all(other_);
  }
}

TEST_F(PackDamageTest, a_damaged_entry_is_told_from_one_that_is_not_there) {
  testing::flip_bit(file_, bytes_.find(key_of(17) + "header"));
  auto store = open_pack_file();
  EXPECT_EQ(store->find({context_, key_of(17)}).status().code(), StatusCode::kCorruption);
  EXPECT_TRUE(store->find({context_, "none"}).is_not_found());
  const std::string key = key_of(17);
  const FoundEntries found = store->find_all(context_, {key, "none"});
  ASSERT_EQ(found.failures().size(), 1u);
  EXPECT_EQ(found.failures().front().i, 0u);
  EXPECT_EQ(found.failures().front().status.code(), StatusCode::kCorruption);
}

TEST_F(PackDamageTest, slots_that_lead_anywhere_lead_nowhere) {
  const std::uint64_t tag = pack_tag_of(address_of(context_.digest, key_of(1)));
  for (const std::uint64_t offset :
       {std::uint64_t{1}, std::uint64_t{64}, std::uint64_t{63}, footer().table_offset,
        footer().table_offset - 64, footer_offset(), std::uint64_t{bytes_.size()},
        ~std::uint64_t{0}, ~std::uint64_t{63}}) {
    // A table without a free slot, each slot of which claims the key.
    write_with_slots(std::vector<PackSlot>(kPackSlotsPerPage, {tag, offset}));
    const std::string found = get(*open_pack_file(), context_, key_of(1));
    EXPECT_EQ(found.front(), '<') << offset << ": " << found;
    EXPECT_EQ(unpack_into(files_, file_, options_of(other_)).value().entries, 0) << offset;
  }
}

TEST_F(PackDamageTest, another_packs_end_is_not_its_own) {
  const std::string first = bytes_;
  pack();
  const std::string second = file_bytes(file_);
  ASSERT_EQ(first.size(), second.size());
  write_file(file_, first.substr(0, footer_offset()) + second.substr(footer_offset()));
  EXPECT_EQ(Store::open(files_, options_of(file_)).status().code(), StatusCode::kCorruption);
  const std::uint64_t table = footer().table_offset;
  write_file(file_, first.substr(0, table) + second.substr(table, footer_offset() - table) +
                        first.substr(footer_offset()));
  EXPECT_EQ(count_right(), 0);
}

TEST_F(PackDamageTest, keys_made_to_have_one_address_are_told_apart) {
  const auto pack = std::move(PackReader::open(files_, file_, ReadVia::kMmap)).value();
  const auto offsets = pack->offsets();
  // Its home is in the first page; from there the search passes over all of the second one.
  int of_first_page = 0;
  const auto address = [&] { return address_of(context_.digest, key_of(of_first_page)); };
  while (pack_home_of(address(), footer().homes) >= kPackSlotsPerPage) ++of_first_page;
  std::vector<PackSlot> slots;
  for (std::size_t i = 0; i < kPackSlotsPerPage; ++i) {
    const auto& all = offsets.value().all;
    slots.push_back({pack_tag_of(address()), all[i % all.size()]});
  }
  write_with_slots(slots);
  EXPECT_EQ(get(*open_pack_file(), context_, key_of(of_first_page)), value_of(of_first_page));
}

}  // namespace
}  // namespace modcache::store
