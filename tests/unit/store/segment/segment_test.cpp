// SPDX-License-Identifier: Apache-2.0
//
// Writing segments, reading them, and scanning them without an index.
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "fs/posix_file_system.h"
#include "store/segment/segment_scan.h"
#include "store/segment/segment_writer.h"
#include "support/fault_file_system.h"
#include "support/store_fixture.h"

namespace modcache::store {
namespace {

using testing::context_named;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Lists in words what a scan finds.
class Listing final : public SegmentVisitor {
 public:
  Status on_context(const RecordHead&, std::string_view scope, std::string) override {
    found.push_back("context " + std::string(scope));
    return Status::ok();
  }
  Status on_entry(const RecordHead&, std::uint64_t, std::string_view key) override {
    found.push_back(std::string(key));
    return Status::ok();
  }
  Status on_clear(const RecordHead&, std::string_view scope, std::string_view prefix) override {
    found.push_back("clear " + std::string(scope) + "/" + std::string(prefix));
    return Status::ok();
  }
  std::vector<std::string> found;
};

class SegmentTest : public ::testing::Test {
 protected:
  SegmentTest() { std::filesystem::create_directory(directory_.segments_path()); }

  NewRecord record(std::string key, std::string payload) {
    texts_.push_back(std::make_unique<std::string>(std::move(key)));
    NewRecord made;
    made.head.sequence = texts_.size();
    made.head.context = context_.digest;
    made.context = &context_;
    made.key = *texts_.back();
    texts_.push_back(std::make_unique<std::string>(std::move(payload)));
    made.payload = texts_.back()->data();
    made.head.payload_size_bytes = texts_.back()->size();
    return made;
  }

  std::vector<std::string> scan(std::uint64_t id) {
    auto reader = SegmentReader::open(directory_, id, ReadVia::kPread);
    EXPECT_TRUE(reader.is_ok()) << reader.status().message();
    Listing listing;
    EXPECT_TRUE(scan_segment(*reader.value(), listing).is_ok());
    return listing.found;
  }

  std::fstream open_bytes(std::uint64_t id) {
    return std::fstream(directory_.segment_path(id),
                        std::ios::in | std::ios::out | std::ios::binary);
  }

  testing::TemporaryDirectory folder_;
  testing::FaultFileSystem files_{fs::posix_file_system()};
  Directory directory_{files_, folder_.path()};
  const Context context_ = context_named("scope");
  std::vector<std::unique_ptr<std::string>> texts_;
};

TEST_F(SegmentTest, reads_back_payloads_from_their_places) {
  SegmentWriter writer(directory_, 1 << 20);
  const std::string large(300000, 'L');
  auto places = writer.append({record("a", "payload a"), record("b", large)});
  ASSERT_TRUE(places.is_ok());
  for (const ReadVia read_via : {ReadVia::kMmap, ReadVia::kPread}) {
    auto reader = SegmentReader::open(directory_, places.value()[1].segment, read_via);
    ASSERT_TRUE(reader.is_ok());
    std::string payload(large.size(), '?');
    RecordHead head;
    head.key_size_bytes = 1;
    ASSERT_TRUE(
        reader.value()
            ->read(places.value()[1].offset + head.payload_offset(), payload.data(), payload.size())
            .is_ok());
    EXPECT_EQ(payload, large);
    EXPECT_EQ(reader.value()->read(1 << 20, payload.data(), 1).code(), StatusCode::kCorruption);
    EXPECT_EQ(reader.value()->read(~std::uint64_t{0}, payload.data(), 2).code(),
              StatusCode::kCorruption);
  }
}

TEST_F(SegmentTest, declares_each_context_once_before_its_first_entry) {
  SegmentWriter writer(directory_, 1 << 20);
  ASSERT_TRUE(writer.append({record("a", "1"), record("b", "2")}).is_ok());
  ASSERT_TRUE(writer.append({record("c", "3")}).is_ok());
  EXPECT_THAT(scan(writer.segment()), ElementsAre("context scope", "a", "b", "c"));
}

TEST_F(SegmentTest, begins_a_new_file_when_one_is_full_and_gives_a_large_record_its_own) {
  SegmentWriter writer(directory_, 4096);
  auto places = writer.append({record("a", std::string(1000, 'a')), record("b", "small"),
                               record("large", std::string(10000, 'l')), record("c", "small")});
  ASSERT_TRUE(places.is_ok());
  std::vector<std::uint64_t> segments;
  for (const RecordPlace& place : places.value()) segments.push_back(place.segment);
  EXPECT_EQ(segments[0], segments[1]);
  EXPECT_NE(segments[1], segments[2]);
  EXPECT_NE(segments[2], segments[3]);
  EXPECT_THAT(scan(segments[2]), ElementsAre("context scope", "large"));
  EXPECT_EQ(directory_.segments().value().size(), 3u);
}

TEST_F(SegmentTest, goes_on_with_a_segment_that_nobody_owns) {
  std::uint64_t first = 0;
  {
    SegmentWriter writer(directory_, 1 << 20);
    ASSERT_TRUE(writer.append({record("a", "1")}).is_ok());
    first = writer.segment();
    SegmentWriter other(directory_, 1 << 20);
    ASSERT_TRUE(other.append({record("b", "2")}).is_ok());
    EXPECT_NE(other.segment(), first);
    other.leave_segment();
    other.release_left();
    std::filesystem::remove(directory_.segment_path(directory_.segments().value()[0] == first
                                                        ? directory_.segments().value()[1]
                                                        : directory_.segments().value()[0]));
  }
  SegmentWriter writer(directory_, 1 << 20);
  ASSERT_TRUE(writer.append({record("c", "3")}).is_ok());
  EXPECT_EQ(writer.segment(), first);
  EXPECT_THAT(scan(first), ElementsAre("context scope", "a", "context scope", "c"));
}

// A process that dies while it writes leaves a record whose payload never came.
TEST_F(SegmentTest, writes_nothing_into_the_space_of_a_torn_record) {
  for (const std::size_t written : {40u, 96u, 200u, 1000u, 5000u, 9023u}) {
    SegmentWriter writer(directory_, 1 << 20);
    ASSERT_TRUE(writer.append({record("a", "1"), record("torn", std::string(9000, 't'))}).is_ok());
    const std::uint64_t id = writer.segment();
    writer.leave_segment();
    const std::uint64_t size = std::filesystem::file_size(directory_.segment_path(id));
    // The head has 128 bytes, and the 24 zeros after the payload may be missing.
    const std::uint64_t torn = size - 9024 - 128;
    std::filesystem::resize_file(directory_.segment_path(id), torn + written);
    ASSERT_TRUE(writer.append({record("b", "2"), record("c", std::string(20000, 'c'))}).is_ok());
    EXPECT_NE(writer.segment(), id) << written;
    EXPECT_THAT(scan(id), ElementsAre("context scope", "a")) << written;
    EXPECT_THAT(scan(writer.segment()), ElementsAre("context scope", "b", "c")) << written;
    std::filesystem::remove(directory_.segment_path(id));
    std::filesystem::remove(directory_.segment_path(writer.segment()));
  }
}

TEST_F(SegmentTest, goes_on_behind_a_record_that_lacks_but_its_padding) {
  SegmentWriter writer(directory_, 1 << 20);
  ASSERT_TRUE(writer.append({record("a", std::string(9000, 'a'))}).is_ok());
  const std::uint64_t id = writer.segment();
  writer.leave_segment();
  writer.release_left();
  const std::uint64_t size = std::filesystem::file_size(directory_.segment_path(id));
  std::filesystem::resize_file(directory_.segment_path(id), size - 20);
  ASSERT_TRUE(writer.append({record("b", "2")}).is_ok());
  EXPECT_EQ(writer.segment(), id);
  EXPECT_THAT(scan(id), ElementsAre("context scope", "a", "context scope", "b"));
}

// The kernel reports a lost write only once.
TEST_F(SegmentTest, tells_of_a_sync_that_failed_while_no_one_asked) {
  SegmentWriter writer(directory_, 4096);
  files_.faults().fail_at(1, testing::Fault::kIoError, false,
                          testing::calls({testing::Call::kSync}));
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(writer.append({record(std::to_string(i), std::string(5000, 'x'))}).is_ok());
    writer.release_left();
  }
  ASSERT_EQ(files_.failures(), 1);
  EXPECT_EQ(writer.sync().code(), StatusCode::kIoError);
  EXPECT_TRUE(writer.sync().is_ok());
}

TEST_F(SegmentTest, writes_no_more_into_a_segment_whose_sync_failed) {
  SegmentWriter writer(directory_, 1 << 20);
  ASSERT_TRUE(writer.append({record("a", "1")}).is_ok());
  const std::uint64_t first = writer.segment();
  files_.faults().fail_at(1, testing::Fault::kIoError, false,
                          testing::calls({testing::Call::kSync}));
  EXPECT_EQ(writer.sync().code(), StatusCode::kIoError);
  ASSERT_TRUE(writer.append({record("b", "2")}).is_ok());
  EXPECT_NE(writer.segment(), first);
}

TEST_F(SegmentTest, appends_nothing_to_a_file_that_was_removed_or_replaced) {
  SegmentWriter writer(directory_, 1 << 20);
  const std::uint64_t removed = writer.append({record("a", "1")}).value().front().segment;
  std::filesystem::remove(directory_.segment_path(removed));
  const std::uint64_t replaced = writer.append({record("b", "2")}).value().front().segment;
  EXPECT_NE(replaced, removed);
  EXPECT_THAT(scan(replaced), ElementsAre("context scope", "b"));
  std::filesystem::rename(directory_.segment_path(replaced), directory_.segment_path(removed));
  std::ofstream(directory_.segment_path(replaced)) << "of somebody else";
  const std::uint64_t last = writer.append({record("c", "3")}).value().front().segment;
  EXPECT_THAT(scan(last), ElementsAre("context scope", "c"));
}

TEST_F(SegmentTest, passes_over_damaged_records) {
  SegmentWriter writer(directory_, 1 << 20);
  auto places = writer.append({record("a", std::string(500, 'a')), record("b", "2"),
                               record("c", std::string(500, 'c')), record("d", "4")});
  ASSERT_TRUE(places.is_ok());
  auto bytes = open_bytes(writer.segment());
  bytes.seekp(static_cast<std::streamoff>(places.value()[2].offset + 20)).put('\xee');
  bytes.close();
  EXPECT_THAT(scan(writer.segment()), ElementsAre("context scope", "a", "b", "d"));
}

// Payloads may come from strangers, and could contain bytes that look like a record.
TEST_F(SegmentTest, does_not_take_payload_bytes_for_a_record) {
  RecordHead forged;
  forged.context = context_.digest;
  forged.sequence = 99;
  const std::string payload = encode_record_head(forged, "forged", "", 0x1234);
  SegmentWriter writer(directory_, 1 << 20);
  auto places = writer.append({record("a", payload)});
  ASSERT_TRUE(places.is_ok());
  auto bytes = open_bytes(writer.segment());
  bytes.seekp(static_cast<std::streamoff>(places.value()[0].offset + 20)).put('\xee');
  bytes.close();
  EXPECT_THAT(scan(writer.segment()), ElementsAre("context scope"));
}

TEST_F(SegmentTest, goes_on_after_a_failed_write_and_declares_contexts_anew) {
  for (const auto fault : {testing::Fault::kNoSpace, testing::Fault::kShortWrite}) {
    SegmentWriter writer(directory_, 1 << 20);
    ASSERT_TRUE(writer.append({record("before", "1")}).is_ok());
    files_.fail_at(1, fault);
    EXPECT_EQ(writer.append({record("lost", std::string(5000, 'x'))}).status().code(),
              StatusCode::kNoSpace);
    files_.heal();
    ASSERT_TRUE(writer.append({record("after", "2")}).is_ok());
    auto found = scan(writer.segment());
    EXPECT_EQ(std::count(found.begin(), found.end(), "before"), 1);
    EXPECT_EQ(std::count(found.begin(), found.end(), "after"), 1);
    std::filesystem::remove(directory_.segment_path(writer.segment()));
  }
}

TEST_F(SegmentTest, refuses_a_file_that_is_no_segment) {
  SegmentWriter writer(directory_, 1 << 20);
  ASSERT_TRUE(writer.append({record("a", "1")}).is_ok());
  const std::string path = directory_.segment_path(writer.segment());
  EXPECT_TRUE(SegmentReader::open(directory_, 7, ReadVia::kMmap).status().is_not_found());
  std::filesystem::copy(path, directory_.segment_path(7));
  EXPECT_EQ(SegmentReader::open(directory_, 7, ReadVia::kMmap).status().code(),
            StatusCode::kCorruption);
  std::filesystem::resize_file(path, 0);
  EXPECT_EQ(SegmentReader::open(directory_, writer.segment(), ReadVia::kMmap).status().code(),
            StatusCode::kCorruption);
}

TEST_F(SegmentTest, lets_go_of_unlinked_files_but_not_of_entries_in_use) {
  SegmentWriter writer(directory_, 1 << 20);
  auto places = writer.append({record("a", "payload")});
  SegmentReaders readers(directory_, ReadVia::kMmap);
  auto reader = readers.get(writer.segment());
  ASSERT_TRUE(reader.is_ok());
  std::filesystem::remove(directory_.segment_path(writer.segment()));
  EXPECT_TRUE(readers.get(writer.segment()).is_ok());
  readers.forget_retired();
  EXPECT_TRUE(readers.get(writer.segment()).status().is_not_found());
  char byte = 0;
  EXPECT_TRUE(reader.value()->read(places.value()[0].offset, &byte, 1).is_ok());
}

TEST(SegmentNameTest, is_sixteen_digits_and_nothing_else) {
  EXPECT_EQ(segment_name(0xc0ffee), "0000000000c0ffee");
  EXPECT_EQ(parse_segment_name("0000000000c0ffee"), 0xc0ffeeu);
  for (const char* name :
       {"", "c0ffee", "0000000000C0FFEE", "0000000000c0ffee0", "../../../../etc"}) {
    EXPECT_FALSE(parse_segment_name(name)) << name;
  }
}

}  // namespace
}  // namespace modcache::store
