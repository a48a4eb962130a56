// SPDX-License-Identifier: Apache-2.0
#include "remote/seal.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>

namespace modcache::remote {
namespace {

std::string sealed_by(const Seal& seal, std::string content) {
  seal.put_on(content);
  return content;
}

bool opens(const Seal& seal, std::string_view bytes) { return seal.take_off(bytes); }

TEST(SealTest, taking_it_off_gives_the_content_back) {
  for (const Seal& seal : {Seal(), Seal("secret")}) {
    for (const std::string& content : {std::string(), std::string("a"), std::string(5000, '\0')}) {
      const std::string bytes = sealed_by(seal, content);
      EXPECT_EQ(bytes.size(), content.size() + Seal::kSizeBytes);
      std::string_view view = bytes;
      ASSERT_TRUE(seal.take_off(view));
      EXPECT_EQ(view, content);
    }
  }
}

TEST(SealTest, every_bit_that_is_changed_breaks_it_and_leaves_the_view_alone) {
  for (const Seal& seal : {Seal(), Seal("secret")}) {
    const std::string bytes = sealed_by(seal, "the content");
    for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      std::string damaged = bytes;
      damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
      std::string_view view = damaged;
      EXPECT_FALSE(seal.take_off(view)) << bit;
      EXPECT_EQ(view, damaged);
    }
  }
}

TEST(SealTest, every_other_length_breaks_it) {
  for (const Seal& seal : {Seal(), Seal("secret")}) {
    const std::string bytes = sealed_by(seal, "the content");
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(opens(seal, std::string_view(bytes).substr(0, size))) << size;
      EXPECT_FALSE(opens(seal, std::string_view(bytes).substr(bytes.size() - size))) << size;
    }
    EXPECT_FALSE(opens(seal, bytes + std::string(1, '\0')));
  }
}

TEST(SealTest, a_seal_of_another_key_or_of_none_is_refused) {
  const Seal seals[] = {Seal(),
                        Seal("a"),
                        Seal("b"),
                        Seal("A"),
                        Seal(std::string("a\0", 2)),
                        Seal(std::string(1000, 'a')),
                        Seal(std::string(1001, 'a'))};
  for (const Seal& maker : seals) {
    const std::string bytes = sealed_by(maker, "content");
    for (const Seal& reader : seals) EXPECT_EQ(opens(reader, bytes), &maker == &reader);
  }
}

TEST(SealTest, keys_have_names_that_tell_them_apart_and_do_not_show_them) {
  EXPECT_EQ(Seal().key_name(), "");
  EXPECT_FALSE(Seal().has_key());
  std::set<std::string> names;
  for (const char* secret : {"a", "b", "deadbeef", "secret"}) {
    const Seal seal{secret};
    EXPECT_TRUE(seal.has_key());
    EXPECT_EQ(seal.key_name(), Seal(secret).key_name());
    EXPECT_EQ(seal.key_name().size(), 8u);
    EXPECT_EQ(seal.key_name().find_first_not_of("0123456789abcdef"), std::string::npos);
    EXPECT_NE(seal.key_name(), secret);
    names.insert(seal.key_name());
  }
  EXPECT_EQ(names.size(), 4u);
}

TEST(SealTest, parts_count_as_what_they_are_together) {
  for (const Seal& seal : {Seal(), Seal("secret")}) {
    EXPECT_EQ(seal.of({"ab", "", "c"}), seal.of({"abc"}));
    EXPECT_NE(seal.of({"ab", "c"}), seal.of({"abd"}));
  }
}

}  // namespace
}  // namespace modcache::remote
