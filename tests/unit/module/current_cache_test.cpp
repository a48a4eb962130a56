// SPDX-License-Identifier: Apache-2.0
#include "module/call/current_cache.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <utility>

#include "support/module_fixture.h"

namespace modcache::module {
namespace {

class CurrentCacheTest : public testing::ModuleTest {
 protected:
  static cache::CachePtr make() { return cache::make_cache({{"disk", "0"}}).value(); }

  const cache::CachePtr outer_ = make();
  const cache::CachePtr inner_ = make();
};

TEST_F(CurrentCacheTest, nests) {
  EXPECT_EQ(current_cache(), cache::default_cache());
  {
    const CacheGuard outer(outer_);
    EXPECT_EQ(current_cache(), outer_);
    {
      const CacheGuard inner(inner_);
      EXPECT_EQ(current_cache(), inner_);
      const CacheGuard again(cache::default_cache());
      EXPECT_EQ(current_cache(), cache::default_cache());
    }
    EXPECT_EQ(current_cache(), outer_);
  }
  EXPECT_EQ(current_cache(), cache::default_cache());
}

TEST_F(CurrentCacheTest, is_not_inherited_by_threads) {
  const CacheGuard outer(outer_);
  std::thread([&] {
    EXPECT_EQ(current_cache(), cache::default_cache());
    const CacheGuard inner(inner_);
    EXPECT_EQ(current_cache(), inner_);
  }).join();
  EXPECT_EQ(current_cache(), outer_);
}

TEST_F(CurrentCacheTest, keeps_its_cache_alive) {
  auto cache = make();
  const std::weak_ptr<cache::Cache> alive = cache;
  {
    const CacheGuard guard(std::move(cache));
    EXPECT_FALSE(alive.expired());
  }
  EXPECT_TRUE(alive.expired());
}

}  // namespace
}  // namespace modcache::module
