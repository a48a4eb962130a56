// SPDX-License-Identifier: Apache-2.0
#include "codec/codec.h"

#include <gmock/gmock.h>

#include <string>

namespace modcache::codec {
namespace {

using ::testing::HasSubstr;

TEST(CodecTest, every_codec_has_a_name_and_the_number_that_is_on_disk) {
  EXPECT_EQ(codec_name(Codec::kNone), "none");
  EXPECT_EQ(codec_name(Codec::kZstd), "zstd");
  EXPECT_EQ(static_cast<int>(Codec::kNone), 0);
  EXPECT_EQ(static_cast<int>(Codec::kZstd), 1);
}

TEST(CodecTest, none_never_encodes_and_decodes_bytes_of_the_right_length) {
  EXPECT_EQ(encode(Codec::kNone, 4, std::string(1000, 'a')), std::nullopt);
  std::string target(5, '?');
  EXPECT_TRUE(decode(Codec::kNone, 4, "bytes", target.data(), target.size()).is_ok());
  EXPECT_EQ(target, "bytes");
  EXPECT_TRUE(decode(Codec::kNone, 4, "", nullptr, 0).is_ok());
  for (const char* wrong : {"", "four", "sixsix"}) {
    EXPECT_EQ(decode(Codec::kNone, 4, wrong, target.data(), target.size()).code(),
              StatusCode::kCorruption);
  }
}

TEST(CodecTest, a_number_of_a_later_version_is_no_codec_here) {
  const auto later = static_cast<Codec>(200);
  EXPECT_EQ(codec_name(later), "");
  EXPECT_EQ(encode(later, 4, std::string(1000, 'a')), std::nullopt);
  std::string target(5, '?');
  const Status status = decode(later, 4, "bytes", target.data(), target.size());
  EXPECT_EQ(status.code(), StatusCode::kUnsupportedVersion);
  EXPECT_THAT(status.message(), HasSubstr("200"));
}

}  // namespace
}  // namespace modcache::codec
