// SPDX-License-Identifier: Apache-2.0
#include "remote/record.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "base/bytes.h"

namespace modcache::remote {
namespace {

// Where the fields lie, as FORMAT.md has them.
constexpr std::size_t kVersionAt = 4;
constexpr std::size_t kRunAt = 40;
constexpr std::size_t kPayloadSizeAt = 56;
constexpr std::size_t kKeySizeAt = 64;
constexpr std::size_t kHeaderSizeAt = 68;

Record sample_record() {
  return {{11, 12}, {13, 14}, "the key", "the header", "the payload", 15, 16};
}

// A forgery: the bytes are changed and sealed anew, so that the seal says nothing.
template <typename Number>
std::string with_number(std::string bytes, std::size_t at, Number number, const Seal& seal) {
  bytes.resize(bytes.size() - Seal::kSizeBytes);
  write_number(number, bytes.data() + at);
  seal.put_on(bytes);
  return bytes;
}

StatusCode code_of(std::string_view bytes, const Seal& seal) {
  // A copy of its own, so that a sanitizer sees what is read beyond it.
  const std::string copy(bytes);
  return decode_record(copy, seal).status().code();
}

TEST(RemoteRecordTest, what_is_encoded_is_decoded) {
  for (const Seal& seal : {Seal(), Seal("secret")}) {
    for (const std::size_t size :
         {std::size_t{0}, std::size_t{1}, std::size_t{15}, std::size_t{16}, std::size_t{300'000}}) {
      const std::string key(size, 'k');
      const std::string header(size / 2, 'h');
      const std::string payload(size * 3, 'p');
      Record record = sample_record();
      record.key = key;
      record.header = header;
      record.payload = payload;
      const std::string bytes = encode_record(record, seal);
      const auto decoded = decode_record(bytes, seal);
      ASSERT_TRUE(decoded.is_ok()) << decoded.status().message();
      EXPECT_EQ(decoded.value().generation, record.generation);
      EXPECT_EQ(decoded.value().context, record.context);
      EXPECT_EQ(decoded.value().key, key);
      EXPECT_EQ(decoded.value().header, header);
      EXPECT_EQ(decoded.value().payload, payload);
      EXPECT_EQ(decoded.value().run_us, record.run_us);
      EXPECT_EQ(decoded.value().stored_at_us, record.stored_at_us);
    }
  }
}

TEST(RemoteRecordTest, extreme_numbers_and_any_bytes_survive) {
  const std::string key("\0\xff", 2);
  Record record = sample_record();
  record.key = key;
  record.generation = {std::numeric_limits<std::uint64_t>::max(), 0};
  record.run_us = std::numeric_limits<std::int64_t>::max();
  record.stored_at_us = std::numeric_limits<std::int64_t>::max();
  const std::string bytes = encode_record(record, Seal());
  const Record decoded = decode_record(bytes, Seal()).value();
  EXPECT_EQ(decoded.key, key);
  EXPECT_EQ(decoded.generation, record.generation);
  EXPECT_EQ(decoded.run_us, 1'000'000'000'000) << "so that a sum of a million is a number";
  EXPECT_EQ(decoded.stored_at_us, record.stored_at_us);
}

TEST(RemoteRecordTest, a_time_before_1970_is_refused) {
  Record record = sample_record();
  record.stored_at_us = std::numeric_limits<std::int64_t>::min();
  EXPECT_EQ(decode_record(encode_record(record, Seal()), Seal()).status().code(),
            StatusCode::kCorruption);
}

TEST(RemoteRecordTest, payloads_begin_at_a_multiple_of_sixteen) {
  const std::string letters(40, 'x');
  for (std::size_t size = 0; size < letters.size(); ++size) {
    Record record = sample_record();
    record.key = std::string_view(letters).substr(0, size);
    const std::string bytes = encode_record(record, Seal());
    EXPECT_EQ((decode_record(bytes, Seal()).value().payload.data() - bytes.data()) % 16, 0);
  }
}

TEST(RemoteRecordTest, a_record_with_one_changed_byte_is_refused) {
  for (const Seal& seal : {Seal(), Seal("secret")}) {
    const std::string bytes = encode_record(sample_record(), seal);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      for (const int change : {0x01, 0x80, 0xff}) {
        std::string damaged = bytes;
        damaged[i] = static_cast<char>(damaged[i] ^ change);
        const StatusCode code = code_of(damaged, seal);
        EXPECT_TRUE(code == StatusCode::kCorruption ||
                    (code == StatusCode::kUnsupportedVersion && i == kVersionAt))
            << i;
      }
    }
  }
}

TEST(RemoteRecordTest, a_record_that_is_cut_short_or_goes_on_is_refused) {
  const std::string bytes = encode_record(sample_record(), Seal());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(code_of(std::string_view(bytes).substr(0, size), Seal()), StatusCode::kCorruption);
    EXPECT_EQ(code_of(std::string_view(bytes).substr(bytes.size() - size), Seal()),
              StatusCode::kCorruption);
  }
  EXPECT_EQ(code_of(bytes + "x", Seal()), StatusCode::kCorruption);
  EXPECT_EQ(code_of(bytes + bytes, Seal()), StatusCode::kCorruption);
}

// Whoever may write to a server without a key can make a good checksum.
TEST(RemoteRecordTest, sizes_that_do_not_fit_are_refused_also_with_a_good_seal) {
  const std::string bytes = encode_record(sample_record(), Seal());
  const std::uint64_t payload = sample_record().payload.size();
  for (const std::uint64_t size :
       {std::uint64_t{0}, payload - 1, payload + 1, payload + 16, ~std::uint64_t{0},
        ~std::uint64_t{0} - 15, std::uint64_t{1} << 63, std::uint64_t{1} << 32}) {
    EXPECT_EQ(code_of(with_number(bytes, kPayloadSizeAt, size, Seal()), Seal()),
              StatusCode::kCorruption)
        << size;
  }
  for (const std::size_t at : {kKeySizeAt, kHeaderSizeAt}) {
    for (const std::uint32_t size :
         {100u, 1000u, 0x7fffffffu, 0x80000000u, 0xffffffffu, 0xfffffff0u, 0xffffffb8u}) {
      EXPECT_EQ(code_of(with_number(bytes, at, size, Seal()), Seal()), StatusCode::kCorruption);
    }
  }
  std::string both = with_number(bytes, kKeySizeAt, 0xffffffffu, Seal());
  both = with_number(both, kHeaderSizeAt, 0xffffffffu, Seal());
  EXPECT_EQ(code_of(both, Seal()), StatusCode::kCorruption);
}

TEST(RemoteRecordTest, a_run_that_took_less_than_no_time_is_refused) {
  const std::string bytes = encode_record(sample_record(), Seal());
  EXPECT_EQ(code_of(with_number(bytes, kRunAt, std::int64_t{-1}, Seal()), Seal()),
            StatusCode::kCorruption);
}

TEST(RemoteRecordTest, another_version_is_told_from_damage_whatever_its_key_and_its_layout) {
  const std::string bytes = encode_record(sample_record(), Seal());
  for (const int version : {kRecordVersion - 1, kRecordVersion + 1, 0xff}) {
    std::string newer = bytes;
    newer[kVersionAt] = static_cast<char>(version);
    newer += "more of a later layout";
    EXPECT_EQ(code_of(newer, Seal()), StatusCode::kUnsupportedVersion);
    EXPECT_EQ(code_of(newer, Seal("secret")), StatusCode::kUnsupportedVersion);
  }
}

TEST(RemoteRecordTest, a_record_of_another_key_is_refused_and_the_message_says_which_it_may_be) {
  const std::string plain = encode_record(sample_record(), Seal());
  const std::string keyed = encode_record(sample_record(), Seal("ours"));
  const auto refusal_of = [](const std::string& bytes, const Seal& seal) {
    const Status status = decode_record(bytes, seal).status();
    EXPECT_EQ(status.code(), StatusCode::kCorruption);
    return status.message();
  };
  EXPECT_NE(refusal_of(keyed, Seal("theirs")).find("another key"), std::string::npos);
  EXPECT_NE(refusal_of(plain, Seal("ours")).find("another key"), std::string::npos);
  EXPECT_NE(refusal_of(keyed, Seal()).find("with a key"), std::string::npos);
}

// Nothing of one kind passes for another that lies on the same server.
TEST(RemoteRecordTest, records_and_marks_are_not_taken_for_each_other) {
  const Seal seal;
  const std::string record = encode_record(sample_record(), seal);
  const std::string mark = encode_mark({1, 2}, seal);
  EXPECT_EQ(code_of(mark, seal), StatusCode::kCorruption);
  EXPECT_FALSE(decode_mark(record, seal).has_value());
}

// Whoever asked compares the parts, so they must not run into each other.
TEST(RemoteRecordTest, key_header_and_context_are_not_mixed_up) {
  Record one = sample_record();
  one.key = "ab";
  one.header = "c";
  Record other = sample_record();
  other.key = "a";
  other.header = "bc";
  const std::string bytes = encode_record(one, Seal());
  const std::string other_bytes = encode_record(other, Seal());
  EXPECT_NE(bytes, other_bytes);
  EXPECT_EQ(decode_record(bytes, Seal()).value().key, "ab");
  EXPECT_EQ(decode_record(other_bytes, Seal()).value().key, "a");
  EXPECT_EQ(decode_record(other_bytes, Seal()).value().header, "bc");
}

}  // namespace
}  // namespace modcache::remote
