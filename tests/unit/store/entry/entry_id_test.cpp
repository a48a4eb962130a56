// SPDX-License-Identifier: Apache-2.0
#include "store/entry/entry_id.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <set>
#include <string>

#include "base/hash.h"

namespace modcache::store {
namespace {

class EntryIdTest : public ::testing::Test {
 protected:
  static std::string address(const Context& context, const std::string& key) {
    return EntryId(context, key).address.bytes();
  }
  const Context context_{blake2b_128("context"), "scope", "context"};
  const Context other_{blake2b_128("other"), "other", "other"};
};

TEST_F(EntryIdTest, its_address_depends_on_context_and_key_alone) {
  const Context same = context_;
  EXPECT_EQ(address(context_, "key"), address(same, "key"));
  EXPECT_NE(address(context_, "key"), address(other_, "key"));
  EXPECT_NE(address(context_, "key"), address(context_, "kez"));
}

TEST_F(EntryIdTest, its_address_takes_in_every_byte_of_keys_of_any_length) {
  std::set<std::string> addresses;
  std::size_t count = 0;
  for (const std::size_t size : {1u, 16u, 239u, 240u, 241u, 255u, 256u, 257u, 1000u, 100'000u}) {
    const std::string key(size, 'x');
    EXPECT_EQ(address(context_, key), address(context_, std::string(size, 'x')));
    for (const std::size_t changed : {std::size_t{0}, size / 2, size - 1}) {
      if (size == 1 && changed == 0 && addresses.count(address(context_, "y")) != 0) continue;
      std::string other = key;
      other[changed] = 'y';
      addresses.insert(address(context_, other));
      ++count;
    }
    addresses.insert(address(context_, key));
    addresses.insert(address(other_, key));
    count += 2;
  }
  EXPECT_EQ(addresses.size(), count);
}

TEST_F(EntryIdTest, its_address_takes_in_bytes_after_a_zero) {
  EXPECT_NE(address(context_, std::string("a\0b", 3)), address(context_, std::string("a\0c", 3)));
}

TEST_F(EntryIdTest, has_the_address_that_the_shared_index_and_packs_go_by) {
  EXPECT_EQ(EntryId(context_, "key").address, address_of(context_.digest, "key"));
  const Digest128 known{1, 2};
  EXPECT_EQ(EntryId(context_, "key", known).address, known);
}

}  // namespace
}  // namespace modcache::store
