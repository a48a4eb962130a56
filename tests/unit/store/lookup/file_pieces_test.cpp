// SPDX-License-Identifier: Apache-2.0
#include "store/lookup/file_pieces.h"

#include <gmock/gmock.h>

namespace modcache::store {
namespace {

using ::testing::ElementsAre;
using ::testing::FieldsAre;
using ::testing::IsEmpty;

TEST(FilePiecesTest, neighbours_of_one_segment_become_one_piece_whatever_their_order) {
  EXPECT_THAT(put_together({{1, 300, 100}, {1, 0, 100}, {1, 100, 100}}, 100),
              ElementsAre(FieldsAre(1u, 0u, 400u)));
}

TEST(FilePiecesTest, those_with_a_larger_gap_or_of_other_segments_stay_apart) {
  EXPECT_THAT(
      put_together({{2, 50, 100}, {1, 201, 100}, {1, 0, 100}}, 100),
      ElementsAre(FieldsAre(1u, 0u, 100u), FieldsAre(1u, 201u, 100u), FieldsAre(2u, 50u, 100u)));
}

TEST(FilePiecesTest, a_piece_within_another_adds_nothing) {
  EXPECT_THAT(put_together({{1, 0, 1000}, {1, 64, 64}, {1, 0, 1000}}, 0),
              ElementsAre(FieldsAre(1u, 0u, 1000u)));
  EXPECT_THAT(put_together({}, 0), IsEmpty());
}

}  // namespace
}  // namespace modcache::store
