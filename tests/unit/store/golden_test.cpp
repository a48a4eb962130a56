// SPDX-License-Identifier: Apache-2.0
//
// A directory that was written once must stay readable by later builds of one format version.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "fs/posix_file_system.h"
#include "golden/golden_contents.h"
#include "support/directory_bytes.h"
#include "support/store_fixture.h"

namespace modcache::store {
namespace {

using testing::GoldenEntry;

class GoldenTest : public ::testing::TestWithParam<const char*> {
 protected:
  GoldenTest() {
    std::filesystem::copy(golden(), copy(), std::filesystem::copy_options::recursive);
  }
  static std::string golden() { return std::string(MODCACHE_GOLDEN_DIRECTORY "/") + GetParam(); }
  std::string copy() const { return directory_ / "copy"; }

  // Returns the sequences, in the order of golden_entries().
  static std::vector<Sequence> expect_contents(Store& store) {
    std::vector<Sequence> sequences;
    for (const GoldenEntry& entry : testing::golden_entries()) {
      auto found = store.find({entry.context, entry.key});
      if (!found.is_ok()) {
        ADD_FAILURE() << entry.key << ": " << found.status().message();
        continue;
      }
      EXPECT_EQ(found.value()->header(), entry.header);
      EXPECT_EQ(found.value()->run_us(), entry.run_us);
      EXPECT_EQ(testing::get(store, entry.context, entry.key), entry.payload);
      sequences.push_back(found.value()->sequence());
    }
    EXPECT_EQ(testing::get(store, testing::golden_context("encoder"), "gone"), "<missing>");
    EXPECT_EQ(store.totals().value().entries,
              static_cast<std::int64_t>(testing::golden_entries().size()));
    return sequences;
  }

  testing::TemporaryDirectory directory_;
};

TEST_P(GoldenTest, is_read_in_place_without_a_change) {
  const auto before = testing::all_bytes(copy());
  StoreOptions options;
  options.directory = copy();
  options.writable = false;
  expect_contents(*testing::open_store(options));
  EXPECT_EQ(testing::all_bytes(copy()), before);
}

TEST_P(GoldenTest, is_opened_and_written_on) {
  auto store = testing::open_store(copy());
  const auto sequences = expect_contents(*store);
  auto added = testing::put(*store, testing::golden_context("encoder"), "added", "later");
  ASSERT_TRUE(added.is_ok());
  for (const Sequence sequence : sequences) EXPECT_GT(added.value(), sequence);
  EXPECT_TRUE(store->flush().is_ok());
}

TEST_P(GoldenTest, is_rebuilt_from_its_segments_alone_with_the_same_contents) {
  const auto sequences = expect_contents(*testing::open_store(copy()));
  for (const auto& entry : std::filesystem::directory_iterator(copy())) {
    if (!entry.is_directory()) std::filesystem::remove(entry.path());
  }
  auto store = testing::open_store(copy());
  EXPECT_EQ(expect_contents(*store), sequences);
  auto scope_cleared = store->clear({"encoder", ""});
  EXPECT_EQ(scope_cleared.value(), 4);
}

INSTANTIATE_TEST_SUITE_P(Versions, GoldenTest, ::testing::Values("v1"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace modcache::store
