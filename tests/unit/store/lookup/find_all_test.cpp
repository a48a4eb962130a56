// SPDX-License-Identifier: Apache-2.0
//
// Many keys at once: Store::find_all, are_current and put_all.
#include <gmock/gmock.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "store/found/batch_lookup.h"
#include "support/directory_bytes.h"
#include "support/store_fixture.h"

namespace modcache::store {
namespace {

using testing::context_named;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::get;
using ::testing::HasSubstr;
using testing::open_store;
using testing::put;
using ::testing::SizeIs;

using Keys = std::vector<std::string_view>;

// As get() of the fixture: the payload, "<missing>", or the failure.
std::string text_of(const FoundEntries& found, std::size_t i) {
  for (const auto& failure : found.failures()) {
    if (failure.i == i) return "<" + failure.status.message() + ">";
  }
  if (!found.index_status().is_ok()) return "<" + found.index_status().message() + ">";
  if (!found.has(i)) return "<missing>";
  std::string payload(found.payload_size_bytes(i), '?');
  const Status status = found.read(i, payload.data());
  return status.is_ok() ? payload : "<" + status.message() + ">";
}

std::vector<std::string> texts_of(const FoundEntries& found) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < found.size(); ++i) texts.push_back(text_of(found, i));
  return texts;
}

// With both ways of reading.
class FindAllTest : public testing::StoreTest, public ::testing::WithParamInterface<ReadVia> {
 protected:
  std::unique_ptr<Store> open() {
    StoreOptions options;
    options.directory = directory_.path();
    options.read_via = GetParam();
    return open_store(std::move(options));
  }
  // "a" to "c", on disk.
  void fill() {
    auto store = open();
    for (const char* key : {"a", "b", "c"}) {
      ASSERT_TRUE(put(*store, context_, key, value(key), "header", 7).is_ok());
    }
    ASSERT_TRUE(store->flush().is_ok());
  }
  static std::string value(const std::string& key) { return "value of " + key; }
  std::vector<std::string> find(Store& store, const Keys& keys) {
    return texts_of(store.find_all(context_, keys));
  }
  std::string segment() const { return testing::segment_files(directory_.path()).front(); }
  // Where the record of this key begins: its head takes two lines of 64 bytes.
  std::uint64_t record_of(const std::string& key) const {
    return testing::file_bytes(segment()).find(value(key)) - 128;
  }
  void damage(const std::string& text) {
    const auto place = testing::file_bytes(segment()).find(text);
    ASSERT_NE(place, std::string::npos);
    testing::flip_bit(segment(), place);
  }
};

using FillCostTest = testing::StoreTest;

INSTANTIATE_TEST_SUITE_P(ReadVia, FindAllTest, ::testing::Values(ReadVia::kMmap, ReadVia::kPread),
                         [](const auto& instance) {
                           return instance.param == ReadVia::kMmap ? "mmap" : "pread";
                         });

TEST_P(FindAllTest, finds_each_key_in_its_place_or_not_again_and_again) {
  fill();
  auto store = open();
  for (int turn = 0; turn < 3; ++turn) {
    EXPECT_THAT(find(*store, {"c", "none", "a", "b"}),
                ElementsAre(value("c"), "<missing>", value("a"), value("b")));
  }
  EXPECT_THAT(find(*store, {"none", "nor this", ""}), Each("<missing>"));
  EXPECT_THAT(find(*store, {}), SizeIs(0));
  const Context other = context_named("other");
  EXPECT_THAT(texts_of(store->find_all(other, {"a"})), ElementsAre("<missing>"));
}

TEST_P(FindAllTest, gives_all_parts_of_entries_and_one_header_for_those_that_share_it) {
  std::vector<Sequence> sequences;
  {
    auto store = open();
    for (const char* key : {"a", "b", "c"}) {
      const std::string header = *key == 'c' ? "another" : "shared";
      auto sequence = put(*store, context_, key, value(key), header, 10 + *key);
      ASSERT_TRUE(sequence.is_ok());
      sequences.push_back(sequence.value());
    }
  }
  auto store = open();
  for (int turn = 0; turn < 2; ++turn) {
    const FoundEntries found = store->find_all(context_, {"a", "b", "c"});
    for (std::size_t i = 0; i < 3; ++i) {
      ASSERT_TRUE(found.has(i));
      EXPECT_EQ(found.sequence(i), sequences[i]);
      EXPECT_EQ(found.run_us(i), 10 + 'a' + static_cast<int>(i));
      EXPECT_EQ(found.header(i), found.headers()[found.header_index(i)]);
    }
    EXPECT_EQ(*found.header(0), "shared");
    EXPECT_EQ(found.header(0), found.header(1)) << "one pointer";
    EXPECT_EQ(*found.header(2), "another");
    EXPECT_THAT(found.headers(), SizeIs(2));
  }
}

TEST_P(FindAllTest, mixes_what_is_queued_with_what_is_stored) {
  fill();
  auto store = open();
  ASSERT_TRUE(put(*store, context_, "queued", "new", "header").is_ok());
  ASSERT_TRUE(put(*store, context_, "a", "replaced", "header").is_ok());
  const FoundEntries found = store->find_all(context_, {"a", "b", "queued"});
  EXPECT_THAT(texts_of(found), ElementsAre("replaced", value("b"), "new"));
  ASSERT_TRUE(store->flush().is_ok());
  EXPECT_THAT(texts_of(found), ElementsAre("replaced", value("b"), "new"));
  EXPECT_THAT(find(*store, {"a", "b", "queued"}), ElementsAre("replaced", value("b"), "new"));
}

TEST_P(FindAllTest, reads_an_empty_payload_that_is_queued) {
  auto store = open();
  const RowPut nothing{"empty", "header", SharedBytes{}, 0};
  std::vector<Sequence> sequences;
  ASSERT_TRUE(store->put_all(context_, {nothing}, sequences).is_ok());
  EXPECT_THAT(find(*store, {"empty"}), ElementsAre(""));
  ASSERT_TRUE(store->flush().is_ok());
  EXPECT_THAT(find(*store, {"empty"}), ElementsAre(""));
}

TEST_P(FindAllTest, sees_at_once_what_another_process_replaced_or_cleared) {
  fill();
  auto store = open();
  EXPECT_THAT(find(*store, {"a", "b"}), ElementsAre(value("a"), value("b")));
  auto other = open();
  ASSERT_TRUE(put(*other, context_, "a", "replaced").is_ok());
  ASSERT_TRUE(other->flush().is_ok());
  const FoundEntries kept = store->find_all(context_, {"a", "b"});
  EXPECT_THAT(texts_of(kept), ElementsAre("replaced", value("b")));
  ASSERT_TRUE(other->clear({}).is_ok());
  EXPECT_THAT(find(*store, {"a", "b"}), Each("<missing>"));
  EXPECT_THAT(texts_of(kept), ElementsAre("replaced", value("b"))) << "what was found stays";
}

TEST_P(FindAllTest, does_not_find_what_another_process_cleared_while_it_was_queued_here) {
  auto store = open();
  ASSERT_TRUE(put(*store, context_, "a", "value").is_ok());
  auto other = open();
  ASSERT_TRUE(other->clear({}).is_ok());
  EXPECT_THAT(find(*store, {"a"}), ElementsAre("<missing>"));
}

TEST_P(FindAllTest, outlives_its_store) {
  fill();
  auto store = open();
  FoundEntries found = store->find_all(context_, {"a", "b"});
  store = nullptr;
  FoundEntries moved = std::move(found);
  EXPECT_THAT(texts_of(moved), ElementsAre(value("a"), value("b")));
}

TEST_P(FindAllTest, verifies_a_payload_when_it_is_first_read) {
  fill();
  auto store = open();
  {
    const FoundEntries first = store->find_all(context_, {"a", "b"});
    EXPECT_EQ(first.verified_bytes(0), nullptr);
    EXPECT_EQ(text_of(first, 0), value("a"));
  }
  const FoundEntries second = store->find_all(context_, {"a", "b"});
  EXPECT_EQ(second.verified_bytes(1), nullptr) << "nobody read it";
  EXPECT_EQ(text_of(second, 0), value("a"));
  if (GetParam() == ReadVia::kPread) return;
  const auto* bytes = reinterpret_cast<const char*>(second.verified_bytes(0));
  ASSERT_NE(bytes, nullptr);
  EXPECT_EQ(std::string(bytes, second.payload_size_bytes(0)), value("a"));
}

TEST_P(FindAllTest, a_damaged_payload_among_good_ones_is_the_failure_of_that_row_alone) {
  fill();
  damage(value("b"));
  auto store = open();
  for (int turn = 0; turn < 2; ++turn) {
    EXPECT_THAT(find(*store, {"a", "b", "c"}),
                ElementsAre(value("a"), HasSubstr("checksum"), value("c")));
  }
}

TEST_P(FindAllTest, a_damaged_head_among_good_ones_is_the_failure_of_that_row_alone) {
  fill();
  auto store = open();
  EXPECT_THAT(find(*store, {"a", "c"}), ElementsAre(value("a"), value("c")));
  testing::flip_bit(segment(), record_of("b") + 20);
  const FoundEntries found = store->find_all(context_, {"a", "b", "c"});
  EXPECT_THAT(texts_of(found), ElementsAre(value("a"), HasSubstr("checksum"), value("c")));
  ASSERT_THAT(found.failures(), SizeIs(1));
  EXPECT_EQ(found.failures()[0].i, 1u);
  EXPECT_EQ(found.failures()[0].status.code(), StatusCode::kCorruption);
  EXPECT_TRUE(store->drop({context_, "b"}, found.failures()[0].sequence).is_ok());
  EXPECT_THAT(find(*store, {"a", "b", "c"}), ElementsAre(value("a"), "<missing>", value("c")));
}

TEST_P(FindAllTest, a_key_that_changes_in_a_known_record_is_noticed) {
  fill();
  auto store = open();
  EXPECT_THAT(find(*store, {"a", "b"}), ElementsAre(value("a"), value("b")));
  testing::flip_bit(segment(), record_of("b") + 80);
  EXPECT_THAT(find(*store, {"a", "b"}), ElementsAre(value("a"), HasSubstr("checksum")));
}

TEST_P(FindAllTest, a_segment_that_is_cut_short_loses_only_what_lay_beyond) {
  fill();
  auto store = open();
  EXPECT_THAT(find(*store, {"a", "b", "c"}), ElementsAre(value("a"), value("b"), value("c")));
  std::filesystem::resize_file(segment(), testing::file_bytes(segment()).find(value("b")) + 3);
  EXPECT_THAT(find(*store, {"a", "b", "c"}),
              ElementsAre(value("a"), HasSubstr("cut short"), HasSubstr("cut short")));
  auto fresh = open();
  EXPECT_THAT(find(*fresh, {"a", "b", "c"}),
              ElementsAre(value("a"), HasSubstr("cut short"), HasSubstr("cut short")));
}

TEST_P(FindAllTest, a_segment_that_is_gone_is_a_failure_of_each_of_its_rows) {
  fill();
  std::filesystem::remove(segment());
  auto store = open();
  EXPECT_THAT(find(*store, {"a", "none"}), ElementsAre(HasSubstr("gone"), "<missing>"));
}

TEST_P(FindAllTest, reads_what_a_growing_segment_gained) {
  auto writer = open();
  auto reader = open();
  for (int i = 0; i < 50; ++i) {
    const std::string key = std::to_string(i);
    ASSERT_TRUE(put(*writer, context_, key, std::string(100000, static_cast<char>(i))).is_ok());
    ASSERT_TRUE(writer->flush().is_ok());
    EXPECT_THAT(find(*reader, {"0", key}),
                ElementsAre(std::string(100000, '\0'), std::string(100000, static_cast<char>(i))));
  }
}

TEST_P(FindAllTest, does_not_take_anothers_record_for_that_of_a_key_with_the_same_address) {
  fill();
  auto store = open();
  const Sequence sequence = store->find_all(context_, {"a"}).sequence(0);
  const auto place = record_of("a");
  const Directory directory(fs::posix_file_system(), directory_.path());
  SegmentReaders readers(directory, GetParam());
  const std::uint64_t id = directory.segments().value().front();
  const auto known_as = [&](std::string_view key) {
    auto locations = std::make_shared<LocationMap>();
    locations->add(
        address_of(context_.digest, key),
        KnownRecord{id, place, sequence, 7, value("a").size(), 0, locations->intern("header")}, 1);
    const Keys keys = {key};
    const OneOrMany<Digest128> addresses = addresses_of(context_.digest, keys);
    BatchLookup batch({context_, keys, addresses}, readers, locations);
    batch.take_known(1);
    return std::move(batch).finish(1).has(0);
  };
  EXPECT_TRUE(known_as("a"));
  EXPECT_FALSE(known_as("b"));
  EXPECT_FALSE(known_as("ab")) << "a key that begins alike";
  EXPECT_FALSE(known_as(std::string_view("a\0", 2)));
}

TEST_P(FindAllTest, tells_for_many_entries_whether_they_are_current) {
  fill();
  auto store = open();
  const FoundEntries found = store->find_all(context_, {"a", "b", "c"});
  const std::vector<Sequence> before = {found.sequence(0), found.sequence(1), found.sequence(2)};
  EXPECT_THAT(store->are_current(context_, {"a", "b", "c"}, before), Each(true));
  ASSERT_TRUE(put(*store, context_, "a", "replaced").is_ok());
  EXPECT_THAT(store->are_current(context_, {"a", "b", "c"}, before),
              ElementsAre(false, true, true));
  ASSERT_TRUE(store->flush().is_ok());
  auto other = open();
  ASSERT_TRUE(other->clear({"", "b"}).is_ok());
  EXPECT_THAT(store->are_current(context_, {"a", "b", "c"}, before),
              ElementsAre(false, false, true));
  EXPECT_THAT(store->are_current(context_, {"a"}, {0}), ElementsAre(false));
}

TEST_P(FindAllTest, threads_ask_while_others_put_and_clear) {
  fill();
  auto store = open();
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    for (int i = 0; i < 30; ++i) {
      EXPECT_TRUE(put(*store, context_, "a", value("a")).is_ok());
      EXPECT_TRUE(store->flush().is_ok());
      if (i % 10 == 0) {
        EXPECT_TRUE(store->clear({"", "b"}).is_ok());
      }
    }
  });
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 300; ++i) {
        const auto texts = find(*store, {"a", "b", "c"});
        EXPECT_EQ(texts[0], value("a"));
        EXPECT_TRUE(texts[1] == value("b") || texts[1] == "<missing>") << texts[1];
        EXPECT_EQ(texts[2], value("c"));
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_P(FindAllTest, puts_many_at_once) {
  auto store = open();
  std::vector<Sequence> sequences;
  const std::vector<RowPut> puts = {{"a", "one", share_bytes("1"), 5},
                                    {"b", "one", share_bytes("2"), 6},
                                    {"a", "two", share_bytes("3"), 7}};
  ASSERT_TRUE(store->put_all(context_, puts, sequences).is_ok());
  EXPECT_THAT(sequences, ElementsAre(sequences[0], sequences[0] + 1, sequences[0] + 2));
  for (int turn = 0; turn < 2; ++turn) {
    const FoundEntries found = store->find_all(context_, {"a", "b"});
    EXPECT_THAT(texts_of(found), ElementsAre("3", "2")) << "the last one of a key counts";
    EXPECT_EQ(*found.header(0), "two");
    EXPECT_EQ(found.run_us(1), 6);
    EXPECT_EQ(found.sequence(0), sequences[2]);
    ASSERT_TRUE(store->flush().is_ok());
  }
  EXPECT_TRUE(store->put_all(context_, {}, sequences).is_ok());
}

TEST_P(FindAllTest, takes_of_a_batch_what_the_budget_has_room_for) {
  StoreOptions options;
  options.directory = directory_.path();
  options.disk_budget_bytes = 1 << 20;
  options.make_policy = testing::keeping_policy;
  auto store = open_store(std::move(options));
  const std::string big(300000, 'x');
  std::vector<std::string> keys = {"0", "1", "2", "3", "4"};
  std::vector<RowPut> puts;
  for (const std::string& key : keys) puts.push_back({key, "", share_bytes(big), 0});
  std::vector<Sequence> sequences;
  EXPECT_TRUE(store->put_all(context_, puts, sequences).is_ok());
  EXPECT_NE(sequences[0], 0u);
  EXPECT_EQ(sequences[4], 0u);
  const FoundEntries found = store->find_all(context_, {"0", "4"});
  EXPECT_TRUE(found.has(0));
  EXPECT_FALSE(found.has(1));
}

// 256 rows a batch of 2 KiB each, with keys, headers and signatures as they are in practice.
TEST_F(FillCostTest, small_rows_cost_at_most_15_percent_more_on_disk_than_their_values) {
  auto store = open_store(directory_.path());
  constexpr int kBatches = 20;
  constexpr int kRows = 256;
  constexpr std::size_t kRowBytes = 2048;
  const std::string header = std::string(4, '\x0c') + "float32[512]" + std::string(34, 'h');
  for (int batch = 0; batch < kBatches; ++batch) {
    std::vector<std::string> keys;
    for (int row = 0; row < kRows; ++row) {
      const std::string number = std::to_string(batch * kRows + row);
      keys.push_back("sample-" + std::string(6 - number.size(), '0') + number);
    }
    std::vector<RowPut> puts;
    for (const std::string& key : keys) {
      puts.push_back({key, header, share_bytes(std::string(kRowBytes, 'v')), 12345});
    }
    std::vector<Sequence> sequences;
    ASSERT_TRUE(store->put_all(context_, puts, sequences).is_ok());
    // As slowly as a model gives them, so that each batch is a commit of its own.
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
  }
  ASSERT_TRUE(store->flush().is_ok());
  const Totals totals = store->totals().value();
  const double values = double{kBatches} * kRows * kRowBytes;
  EXPECT_EQ(totals.entries, kBatches * kRows);
  EXPECT_LE(static_cast<double>(totals.size_bytes) / values, 1.15);
}

}  // namespace
}  // namespace modcache::store
