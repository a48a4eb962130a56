// SPDX-License-Identifier: Apache-2.0
//
// Where the memory tier holds the values of a scope. A text says where it was moved.
#include "cache/place.h"

#include <gtest/gtest.h>

#include "support/cache_fixture.h"

namespace modcache::cache {
namespace {

const Place kDevice{Place::Kind::kDevice, "cuda:0"};
const Place kPinned{Place::Kind::kPinned, ""};

TEST(PlacesTest, a_scope_lies_on_the_host_until_it_is_placed) {
  Places places;
  EXPECT_TRUE(places.of("a").is_host());
  places.set("a", kDevice);
  EXPECT_EQ(places.of("a").device, "cuda:0");
  EXPECT_TRUE(places.of("ab").is_host());
  places.set("a", Place{});
  EXPECT_TRUE(places.of("a").is_host());
}

class PlaceTest : public testing::CacheTest {};

TEST_F(PlaceTest, what_is_stored_is_held_where_its_scope_is_placed) {
  here_.cache().place("scope", kPinned);
  here_.store("key", "text");
  EXPECT_EQ(here_.lookup("key"), "text@pinned");
}

TEST_F(PlaceTest, what_lies_on_disk_is_as_it_was) {
  here_.cache().place("scope", kDevice);
  here_.store("key", "text");
  here_.cache().flush();
  testing::Process other(dir_);
  EXPECT_EQ(other.lookup("key"), "text");
}

TEST_F(PlaceTest, what_is_found_on_disk_is_held_there_too) {
  here_.store("key", "text");
  here_.cache().flush();
  testing::Process other(dir_);
  other.cache().place("scope", kDevice);
  EXPECT_EQ(other.lookup("key"), "text@cuda:0");
  EXPECT_EQ(other.lookup("key"), "text@cuda:0");
  EXPECT_EQ(other.stat("hits_disk"), 1);
  EXPECT_EQ(other.stat("hits_memory"), 1);
}

TEST_F(PlaceTest, what_is_held_moves_when_the_place_changes) {
  here_.store("key", "text");
  here_.cache().place("scope", kDevice);
  EXPECT_EQ(here_.lookup("key"), "text@cuda:0");
  here_.cache().place("scope", Place{});
  EXPECT_EQ(here_.lookup("key"), "text");
  EXPECT_EQ(here_.stat("hits_memory"), 2);
}

TEST_F(PlaceTest, another_scope_stays_where_it_is) {
  here_.cache().place("scop", kDevice);
  here_.cache().place("scope/2", kDevice);
  here_.store("key", "text");
  EXPECT_EQ(here_.lookup("key"), "text");
}

TEST_F(PlaceTest, what_lies_elsewhere_counts_in_the_one_budget) {
  here_.store("key", "text");
  const std::int64_t before = here_.stat("bytes_memory");
  here_.cache().place("scope", kPinned);
  EXPECT_EQ(here_.stat("bytes_memory"), before + 7);
}

}  // namespace
}  // namespace modcache::cache
