// SPDX-License-Identifier: Apache-2.0
#include "module/call/samples.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/module_fixture.h"

namespace modcache::module {
namespace {

using tensor::Flat;
using tensor::Node;
using ::testing::ElementsAre;
using Keys = std::vector<std::string_view>;

class SamplesTest : public testing::ModuleTest {
 protected:
  // (image [2], label)
  static Flat sample(double number) {
    Node label;
    label.kind = Node::Kind::kInt;
    label.integer = static_cast<std::int64_t>(number);
    Node root;
    root.kind = Node::Kind::kTuple;
    root.children = {Node{}, label};
    return {root, {at::full({2}, number)}, {}};
  }
  static Flat two_tensors(double number) {
    Node root;
    root.kind = Node::Kind::kList;
    root.types = {""};
    root.children = {Node{}, Node{}};
    return {root, {at::full({2}, number), at::full({3}, -number, at::kDouble)}, {}};
  }

  void keep(const Keys& keys, const std::vector<Flat>& values) const {
    keep_since(look_up_samples(names_, keys).begun, keys, values);
  }
  void keep_since(const cache::Generation& begun, const Keys& keys,
                  const std::vector<Flat>& values) const {
    store_samples(names_, begun, keys, values, std::vector<std::int64_t>(keys.size(), 5));
  }
  // The first number of each sample's first tensor; -1 where there is none.
  std::vector<double> found(const Keys& keys) const {
    std::vector<double> numbers;
    for (const auto& value : look_up_samples(names_, keys).values) {
      numbers.push_back(value.has_value() ? value->tensors[0][0].item<double>() : -1);
    }
    return numbers;
  }

  const SampleNames names_{"scope@1", "CachedDataset"};
};

TEST_F(SamplesTest, finds_in_memory_and_on_disk_what_was_kept_in_the_order_of_the_keys) {
  EXPECT_THAT(found({"a", "b"}), ElementsAre(-1, -1));
  keep({"a", "b"}, {sample(1), two_tensors(2)});
  EXPECT_THAT(found({"b", "c", "a"}), ElementsAre(2, -1, 1));
  EXPECT_EQ(stat("hits_memory"), 2);
  forget_memory();
  for (int i = 0; i < 2; ++i) {  // read and checked, then known to be sound
    const SamplesFound again = look_up_samples(names_, {"b", "a"});
    ASSERT_TRUE(again.values[0].has_value() && again.values[1].has_value());
    EXPECT_TRUE(at::equal(again.values[0]->tensors[1], at::full({3}, -2.0, at::kDouble)));
    EXPECT_EQ(again.values[1]->root, sample(1).root);
  }
  EXPECT_EQ(stat("hits_disk"), 4);
  EXPECT_EQ(stat("entries_memory"), 0) << "the page cache has them";
  EXPECT_EQ(stat("misses"), 2);
  EXPECT_EQ(stat("stored"), 2);
  EXPECT_EQ(stat("run_us"), 10);
  EXPECT_EQ(stat("saved_us"), 30);
}

TEST_F(SamplesTest, what_is_handed_out_may_be_written_into) {
  keep({"a"}, {sample(1)});
  for (int i = 0; i < 4; ++i) {
    if (i == 2) forget_memory();
    SamplesFound again = look_up_samples(names_, {"a"});
    EXPECT_EQ(again.values[0]->tensors[0][0].item<double>(), 1);
    again.values[0]->tensors[0].zero_();
  }
}

// Fresh memory of this size is given back to the kernel each time, which provides it page by page.
TEST_F(SamplesTest, the_memory_of_a_large_sample_is_used_again) {
  constexpr std::int64_t kBytes = 40 << 20;
  keep({"a"}, {Flat{Node{}, {at::ones({kBytes}, at::kByte)}, {}}});
  forget_memory();
  (void)look_up_samples(names_, {"a"});
  const auto faults = [] {
    rusage usage{};
    ::getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_minflt;
  };
  const long before = faults();
  (void)look_up_samples(names_, {"a"});
  EXPECT_LT(faults() - before, 1000);
}

TEST_F(SamplesTest, an_encoded_and_narrowed_sample_comes_back_in_its_dtype) {
  configure({{"dtype", "float16"}, {"codec", "zstd"}});
  keep({"a", "b"}, {Flat{Node{}, {at::full({4096}, 3.0)}, {}}, two_tensors(2)});
  forget_memory();
  const SamplesFound again = look_up_samples(names_, {"a", "b"});
  EXPECT_TRUE(at::equal(again.values[0]->tensors[0], at::full({4096}, 3.0)));
  EXPECT_TRUE(at::equal(again.values[1]->tensors[1], at::full({3}, -2.0, at::kDouble)));
}

TEST_F(SamplesTest, the_mode_decides_what_is_found_and_kept) {
  keep({"a"}, {sample(1)});
  set_mode(cache::Mode::kOff);
  EXPECT_TRUE(look_up_samples(names_, {"a", "b"}).is_off);
  EXPECT_EQ(stat("bypassed_off"), 2);
  set_mode(cache::Mode::kRead);
  keep({"b"}, {sample(2)});
  EXPECT_THAT(found({"a", "b"}), ElementsAre(1, -1));
  set_mode(cache::Mode::kRefresh);
  EXPECT_THAT(found({"a"}), ElementsAre(-1));
  keep({"a"}, {sample(3)});
  set_mode(cache::Mode::kVerify);
  keep({"a"}, {sample(3)});
  EXPECT_EQ(stat("verify_differences"), 0);
  keep({"a"}, {sample(4)});
  EXPECT_EQ(stat("verify_differences"), 1);
  set_mode(cache::Mode::kOn);
  EXPECT_THAT(found({"a"}), ElementsAre(3));
}

TEST_F(SamplesTest, what_cannot_be_stored_is_an_error_and_nothing_is_kept) {
  Flat with_grad = sample(1);
  with_grad.tensors[0].requires_grad_();
  EXPECT_THROW(keep({"a", "b"}, {sample(2), with_grad}), c10::Error);
  Flat refused = sample(1);
  refused.why_not_storable = "a value nested too deeply";
  EXPECT_THROW(keep({"a"}, {refused}), c10::Error);
  EXPECT_THAT(found({"a", "b"}), ElementsAre(-1, -1));
  EXPECT_THAT(found({}), ElementsAre());
}

TEST_F(SamplesTest, a_worker_that_forgoes_memory_is_served_from_disk) {
  keep({"a"}, {sample(1)});
  test_cache().disable_memory_tier();
  EXPECT_THAT(found({"a"}), ElementsAre(1));
  keep({"b"}, {sample(2)});
  EXPECT_THAT(found({"b", "a"}), ElementsAre(2, 1));
  EXPECT_EQ(stat("hits_disk"), 3);
  EXPECT_EQ(stat("entries_memory"), 0);
  EXPECT_EQ(stat("evicted"), 0);
  EXPECT_EQ(test_cache().settings().at("memory"), "0");
}

TEST_F(SamplesTest, are_not_kept_after_a_clear_that_came_since_they_were_looked_up) {
  const Keys keys{"a"};
  const cache::Generation begun = look_up_samples(names_, keys).begun;
  cache::default_cache()->clear({}, cache::Cache::Tier::kAll);
  keep_since(begun, keys, {sample(1)});
  EXPECT_THAT(found(keys), ElementsAre(-1));
  keep(keys, {sample(2)});
  EXPECT_THAT(found(keys), ElementsAre(2));
}

}  // namespace
}  // namespace modcache::module
