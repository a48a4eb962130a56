// SPDX-License-Identifier: Apache-2.0
#include "store/write/intake.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "support/store_parts.h"

namespace modcache::store {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::StoreParts;

class IntakeTest : public testing::StorePartsTest {
 protected:
  static RowPut row(std::string_view key) {
    RowPut put;
    put.key = key;
    put.header = "header";
    put.payload = share_bytes(std::string(100, 'x'));
    return put;
  }
  Status put_all(const std::vector<RowPut>& puts) {
    Admission admission(parts_.attached, parts_.budget, parts_.usage, parts_.reclaimer.room());
    Intake intake(parts_.attached, admission, parts_.lookup, parts_.queue, parts_.remover, writer_);
    std::vector<std::string_view> keys;
    for (const RowPut& put : puts) keys.push_back(put.key);
    return intake.put_all(context_, addresses_of(context_.digest, keys), puts, sequences_);
  }

  StoreParts parts_{options_};
  Writer writer_{parts_.attached, parts_.committer, parts_.mirror,
                 parts_.queue,    parts_.remover,   parts_.reclaimer.room()};
  std::vector<Sequence> sequences_;
};

TEST_F(IntakeTest, numbers_and_queues_in_the_order_of_the_rows) {
  ASSERT_TRUE(put_all({row("a"), row("b"), row("c")}).is_ok());
  const Sequence first = sequences_.front();
  EXPECT_THAT(sequences_, ElementsAre(first, first + 1, first + 2));
  EXPECT_EQ(parts_.queue.last_position(), 3);
  EXPECT_EQ(parts_.find({context_, "b"}).value()->sequence(), first + 1);
}

TEST_F(IntakeTest, stores_the_others_of_rows_that_cannot_be_stored) {
  const std::string too_long(kMaxKeySizeBytes + 1, 'k');
  const Status status = put_all({row("a"), row(""), row(too_long), row("b")});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("not 0"));
  const Sequence first = sequences_.front();
  EXPECT_THAT(sequences_, ElementsAre(first, 0, 0, first + 1));
}

TEST_F(IntakeTest, rows_with_one_header_share_it) {
  ASSERT_TRUE(put_all({row("a"), row("b")}).is_ok());
  EXPECT_EQ(parts_.find_queued({context_, "a"})->header,
            parts_.find_queued({context_, "b"})->header);
  EXPECT_EQ(parts_.find_queued({context_, "a"})->context,
            parts_.find_queued({context_, "b"})->context);
}

TEST_F(IntakeTest, refuses_all_once_the_directory_was_replaced) {
  parts_.attached.detach();
  EXPECT_THAT(put_all({row("a")}).message(), HasSubstr("was replaced"));
  EXPECT_EQ(parts_.queue.last_position(), 0);
}

}  // namespace
}  // namespace modcache::store
