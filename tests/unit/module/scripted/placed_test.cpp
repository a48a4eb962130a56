// SPDX-License-Identifier: Apache-2.0
//
// Calls whose scope has a place of its own in memory. The device is the CPU: where a value was put
// counts, not what it is made of.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>

#include <string>
#include <string_view>
#include <vector>

#include "module/scripted/scripted.h"
#include "support/child_process.h"
#include "support/module_fixture.h"

namespace modcache::module {
namespace {

using cache::Place;
using torch::jit::Module;

using Keys = std::vector<std::string_view>;

class PlacedTest : public testing::ModuleTest, public ::testing::WithParamInterface<Place::Kind> {
 protected:
  PlacedTest() {
    configure({{"match", "none"}});
    encoder_.define("def forward(self, x):\n  return x * 100\n");
    test_cache().place(scope_, place_);
  }
  ~PlacedTest() override { test_cache().place(scope_, Place{}); }

  std::vector<double> rows(const std::vector<double>& input, const Keys& keys) const {
    const at::Tensor out = lookup_or_run({encoder_._ivalue(), at::tensor(input, at::kDouble),
                                          scope_, method_, Want::kTensor},
                                         CallKeys(keys))
                               .toTensor()
                               .contiguous();
    return {out.data_ptr<double>(), out.data_ptr<double>() + out.numel()};
  }
  at::Tensor whole(const at::Tensor& input, const std::string& key) const {
    return lookup_or_run({encoder_._ivalue(), input, scope_, method_, Want::kTensor},
                         CallKeys::whole(key))
        .toTensor();
  }

  const std::string scope_ = "scope";
  const std::string method_ = "forward";
  const Place place_{GetParam(), GetParam() == Place::Kind::kDevice ? "cpu" : ""};
  Module encoder_{"__torch__.Encoder"};
};
INSTANTIATE_TEST_SUITE_P(Places, PlacedTest,
                         ::testing::Values(Place::Kind::kHost, Place::Kind::kPinned,
                                           Place::Kind::kDevice));

TEST_P(PlacedTest, rows_are_hits_in_any_order_and_number) {
  EXPECT_EQ(rows({1, 2, 3}, {"a", "b", "c"}), (std::vector<double>{100, 200, 300}));
  EXPECT_EQ(rows({3, 1, 2}, {"c", "a", "b"}), (std::vector<double>{300, 100, 200}));
  EXPECT_EQ(rows({2, 2, 1}, {"b", "b", "a"}), (std::vector<double>{200, 200, 100}));
  EXPECT_EQ(stat("hits_memory"), 6);
  EXPECT_EQ(stat("misses"), 3);
}

TEST_P(PlacedTest, missing_rows_are_run_and_put_beside_the_others) {
  rows({1, 3}, {"a", "c"});
  EXPECT_EQ(rows({1, 2, 3, 4}, {"a", "b", "c", "d"}), (std::vector<double>{100, 200, 300, 400}));
  EXPECT_EQ(stat("hits_memory"), 2);
}

TEST_P(PlacedTest, rows_of_memory_and_disk_mix) {
  rows({1, 2}, {"a", "b"});
  forget_memory();
  rows({3}, {"c"});
  EXPECT_EQ(rows({1, 3, 2}, {"a", "c", "b"}), (std::vector<double>{100, 300, 200}));
  EXPECT_EQ(stat("hits_memory"), 1);
  EXPECT_EQ(stat("hits_disk"), 2);
}

TEST_P(PlacedTest, rows_found_on_disk_come_to_a_device_and_stay_on_disk_otherwise) {
  rows({1, 2}, {"a", "b"});
  forget_memory();
  rows({1, 2}, {"a", "b"});
  test_cache().wait_until_read_ahead();
  EXPECT_EQ(stat("entries_memory"), GetParam() == Place::Kind::kDevice ? 2 : 0);
  EXPECT_EQ(rows({1, 2}, {"a", "b"}), (std::vector<double>{100, 200}));
}

TEST_P(PlacedTest, rows_are_verified_against_what_lies_there) {
  rows({1, 2}, {"a", "b"});
  test_cache().set_mode(cache::Mode::kVerify);
  rows({1, 9}, {"a", "b"});
  EXPECT_EQ(stat("verify_differences"), 1);
  EXPECT_EQ(stat("errors"), 0);
}

TEST_P(PlacedTest, a_whole_value_may_be_written_into) {
  const at::Tensor input = at::arange(50'000, at::kFloat).view({10, 5'000});
  const at::Tensor first = whole(input, "key").clone();
  for (int round = 0; round < 3; ++round) {
    const at::Tensor hit = whole(input, "key");
    EXPECT_TRUE(hit.equal(first));
    hit.zero_();
  }
  EXPECT_EQ(stat("hits_memory"), 3);
}

TEST_P(PlacedTest, a_whole_value_lies_on_disk_as_always) {
  const at::Tensor input = at::ones({2, 3});
  const at::Tensor first = whole(input, "key");
  forget_memory();
  EXPECT_TRUE(whole(input, "key").equal(first));
  EXPECT_TRUE(whole(input, "key").equal(first));
  EXPECT_EQ(stat("hits_disk"), 1);
  EXPECT_EQ(stat("hits_memory"), 1);
}

TEST_P(PlacedTest, what_is_held_moves_to_a_place_and_back) {
  const at::Tensor input = at::ones({2, 3});
  const at::Tensor first = whole(input, "key");
  rows({1, 2}, {"a", "b"});
  for (const Place& place : {Place{}, place_, Place{}}) {
    test_cache().place(scope_, place);
    EXPECT_TRUE(whole(input, "key").equal(first));
    EXPECT_EQ(rows({2, 1}, {"b", "a"}), (std::vector<double>{200, 100}));
  }
  EXPECT_EQ(stat("misses"), 3);
}

TEST_P(PlacedTest, a_forked_child_reads_from_disk_what_only_its_parent_can_read) {
  const at::Tensor input = at::ones({2, 3});
  const at::Tensor first = whole(input, "key");
  rows({1, 2}, {"a", "b"});
  test_cache().flush();
  testing::ChildProcess child([&] {
    const bool are_right = whole(input, "key").equal(first) &&
                           rows({1, 2}, {"a", "b"}) == std::vector<double>{100, 200};
    return are_right && stat("misses") == 3 ? 0 : 1;
  });
  EXPECT_EQ(child.wait(), 0);
}

}  // namespace
}  // namespace modcache::module
