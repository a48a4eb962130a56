// SPDX-License-Identifier: Apache-2.0
#include "module/call/stored_rows.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "support/call_fixture.h"

namespace modcache::module {
namespace {

using ::testing::ElementsAre;

class StoredRowsTest : public testing::CallFixture {
 protected:
  // Stores `result` for one row, which the input 1 gives.
  static void store(std::string_view key, const at::Tensor& result) {
    CallFixture::store(Names{key}, at::ones({1}), result.unsqueeze(0));
  }
  cache::Keys keys_of(const Names& names) const {
    cache::Keys keys(parts_.context(tensor::Per::kRow), names);
    keys.configuration = parts_.configuration;
    keys.form = cache::Form::kRow;
    return keys;
  }
  // Looks the keys up for the rows in reverse order, and adds to `output` what was found. Returns
  // which keys are missing.
  std::vector<std::size_t> add(const Names& names, tensor::RowsOutput& output) const {
    cache::Keys keys = keys_of(names);
    for (std::size_t i = names.size(); i > 0; --i) keys.input_rows.push_back(i - 1);
    cache::Found found = parts_.cache->lookup(keys, {});
    add_stored_rows(parts_, {keys, found, /*may_write=*/true, names.size()}, output);
    return found.missing();
  }
  const CallParts parts_ = parts_of(at::ones({1}), tensor::Per::kRow);
};

TEST_F(StoredRowsTest, lie_in_the_places_of_their_rows_from_memory_and_from_disk) {
  store("a", at::tensor({1.0F, 2.0F}));
  store("b", at::tensor({3.0F, 4.0F}));
  for (int tier = 0; tier < 2; ++tier) {
    tensor::RowsOutput output(2);
    EXPECT_THAT(add({"a", "b"}, output), ElementsAre());
    const auto together = output.together(std::nullopt);
    ASSERT_TRUE(together.has_value());
    EXPECT_TRUE(together->tensors[0].equal(at::tensor({3.0F, 4.0F, 1.0F, 2.0F}).reshape({2, 2})));
    forget_memory();
  }
}

TEST_F(StoredRowsTest, of_another_kind_than_most_are_refused_and_missing) {
  store("a", at::tensor({1.0F}));
  store("b", at::tensor({2.0F}));
  store("odd", at::ones({1}, at::kLong));
  forget_memory();
  tensor::RowsOutput output(3);
  EXPECT_THAT(add({"a", "odd", "b"}, output), ElementsAre(1));
}

TEST_F(StoredRowsTest, share_the_layout_of_their_header) {
  store("a", at::tensor({1.0F}));
  store("b", at::tensor({2.0F}));
  forget_memory();
  const cache::Found found = parts_.cache->lookup(keys_of({"a", "b"}), {});
  StoredLayouts layouts(found.rows());
  const auto first = layouts.of(found.row(0));
  ASSERT_TRUE(first.is_ok());
  EXPECT_EQ(layouts.of(found.row(0)).value(), first.value()) << "decoded once";
  EXPECT_EQ(layouts.of(found.row(1)).value()->payload_size_bytes(), sizeof(float));
}

}  // namespace
}  // namespace modcache::module
