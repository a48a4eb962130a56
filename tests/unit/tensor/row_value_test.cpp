// SPDX-License-Identifier: Apache-2.0
#include "tensor/row_value.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "cache/settings.h"
#include "support/value_tensors.h"
#include "tensor/stored_format.h"

namespace modcache::tensor {
namespace {

using codec::Codec;
using testing::cut;
using testing::expect_same;
using testing::flat_of;

TEST(RowValueTest, a_row_holds_its_own_bytes_and_nothing_of_the_batch) {
  at::Tensor batch = at::arange(8, at::kFloat).view({4, 2});
  const auto rows = cut(batch);
  batch.fill_(-1);
  const StoredValue stored = stored_value(*rows[2]);
  expect_same(stored.value.tensors[0], at::tensor({4.0, 5.0}, at::kFloat));
  stored.value.tensors[0].fill_(-1);
  expect_same(stored_value(*rows[2]).value.tensors[0], at::tensor({4.0, 5.0}, at::kFloat));
  EXPECT_EQ(rows[2]->write(Codec::kNone).payload.size_bytes, 8u);
  EXPECT_LT(rows[3]->size_bytes(), 300u) << "of the layout a row counts its share alone";
}

TEST(RowValueTest, a_plain_row_is_handed_out_as_a_batch_of_one) {
  const at::Tensor batch = at::arange(8, at::kFloat).view({4, 2});
  const auto row = cut(batch)[2];
  ASSERT_TRUE(row->is_plain_lone_tensor());
  row->batch_of_one().fill_(-1);
  expect_same(row->batch_of_one(), batch.narrow(0, 2, 1));
  const at::Tensor image = at::ones({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  EXPECT_FALSE(cut(image)[0]->is_plain_lone_tensor()) << "its dimensions have another order";
  const RowCutter narrowing(tensor::flatten(batch), std::nullopt, cache::StoredDtype::kFloat16);
  EXPECT_FALSE(narrowing.cut(0)->is_plain_lone_tensor());
}

TEST(RowValueTest, what_is_written_outlives_the_row) {
  cache::Written written;
  written = cut(at::arange(6, at::kByte).view({2, 3}))[1]->write(Codec::kNone);
  EXPECT_EQ(written.payload.view(), "\3\4\5");
}

TEST(RowValueTest, rows_of_one_run_share_a_layout_and_a_header) {
  const auto rows = cut(flat_of({at::ones({2, 3}), at::ones({2})}));
  EXPECT_EQ(&rows[0]->layout(), &rows[1]->layout());
  EXPECT_EQ(rows[0]->write(Codec::kNone).header, rows[1]->write(Codec::kNone).header);
  EXPECT_EQ(rows[0]->layout().tensors()[0].sizes, std::vector<std::int64_t>{3});
  EXPECT_TRUE(rows[0]->layout().tensors()[1].sizes.empty());
}

TEST(RowValueTest, views_conjugates_and_zero_tensors_are_cut_as_what_they_show) {
  const at::Tensor complex = at::randn({2, 3}, at::kComplexFloat);
  for (const at::Tensor& batch :
       {at::arange(6).view({3, 2}).t(), at::ones({1, 3}).expand({2, 3}), complex.conj(),
        at::imag(complex.conj()), complex.requires_grad_(), at::_efficientzerotensor({2, 3})}) {
    const auto rows = cut(batch);
    for (std::int64_t i = 0; i < 2; ++i) {
      const at::Tensor stored = stored_value(*rows[static_cast<std::size_t>(i)]).value.tensors[0];
      EXPECT_FALSE(stored.requires_grad());
      EXPECT_TRUE(at::equal(stored, batch.detach().select(0, i)));
    }
  }
}

TEST(RowValueTest, is_read_from_its_bytes_and_not_where_they_fail_their_check) {
  const auto row = cut(at::arange(6, at::kByte).view({2, 3}))[1];
  const cache::Written written = row->write(Codec::kNone);
  const LayoutPtr layout = Layout::decode(written.header).value();
  const auto copy = [&](void* target) {
    std::memcpy(target, written.payload.data, written.payload.size_bytes);
    return Status::ok();
  };
  const auto again = RowValue::read(layout, 3, copy).value();
  expect_same(stored_value(*again).value.tensors[0], at::tensor({3, 4, 5}, at::kByte));
  const auto failing = [](void*) { return Status::corruption("checksum"); };
  EXPECT_EQ(RowValue::read(layout, 3, failing).status().code(), StatusCode::kCorruption);
}

}  // namespace
}  // namespace modcache::tensor
