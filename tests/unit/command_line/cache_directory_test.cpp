// SPDX-License-Identifier: Apache-2.0
#include "command_line/cache_directory.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "fs/posix_file_system.h"
#include "store/store.h"
#include "support/temporary_directory.h"

namespace modcache::command_line {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class EntriesInOrderTest : public ::testing::Test {
 protected:
  EntriesInOrderTest() {
    store::StoreOptions options;
    options.directory = place_.path();
    auto store = store::Store::open(fs::posix_file_system(), std::move(options)).value();
    const auto context = cache::make_context({"", "scope", "forward", cache::Form::kWhole, "", ""});
    for (const char* key : {"k1", "k10", "k100", "k2", "k20", "k3", "x"}) {
      EXPECT_TRUE(store->put({{*context, key}, "header", share_bytes("value"), 1}).is_ok());
    }
    EXPECT_TRUE(store->flush().is_ok());
    store = nullptr;
    directory_ = CacheDirectory::open(place_.path()).value();
  }

  std::vector<std::string> keys(const std::string& prefix, std::uint64_t most,
                                std::size_t most_held, std::size_t most_visited = 100) {
    std::vector<std::string> keys;
    const auto visit = [&](const store::ListedEntry& entry) {
      keys.push_back(entry.key);
      return keys.size() < most_visited;
    };
    EXPECT_TRUE(
        directory_->for_each_in_order(directory_->contexts()[0], prefix, most, visit, most_held)
            .is_ok());
    return keys;
  }

  const testing::TemporaryDirectory place_;
  std::unique_ptr<CacheDirectory> directory_;
};

TEST_F(EntriesInOrderTest, they_come_as_people_count_however_few_are_held) {
  for (const std::size_t most_held : {1, 2, 3, 6, 7, 8, 1000}) {
    EXPECT_THAT(keys("", 1000, most_held), ElementsAre("k1", "k2", "k3", "k10", "k20", "k100", "x"))
        << most_held;
  }
}

TEST_F(EntriesInOrderTest, the_first_of_them_are_enough) {
  for (const std::size_t most_held : {1, 2, 100}) {
    EXPECT_THAT(keys("", 4, most_held), ElementsAre("k1", "k2", "k3", "k10"));
    EXPECT_THAT(keys("k1", 2, most_held), ElementsAre("k1", "k10"));
    EXPECT_THAT(keys("", 0, most_held), IsEmpty());
    EXPECT_THAT(keys("none", 9, most_held), IsEmpty());
  }
}

TEST_F(EntriesInOrderTest, a_visitor_who_had_enough_is_heeded) {
  EXPECT_THAT(keys("", 1000, 2, 3), ElementsAre("k1", "k2", "k3"));
}

}  // namespace
}  // namespace modcache::command_line
