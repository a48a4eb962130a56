// SPDX-License-Identifier: Apache-2.0
#include "module/watch/watch.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace modcache::module {
namespace {

TEST(WatchTest, gives_equal_contents_one_digest) {
  Watch a;
  Watch b;
  EXPECT_EQ(a.digest({at::ones({3}), at::zeros({2})}), b.digest({at::ones({3}), at::zeros({2})}));
  EXPECT_NE(a.digest({at::zeros({2}), at::ones({3})}), b.digest({at::ones({3}), at::zeros({2})}));
  EXPECT_EQ(a.digests({at::ones({3}), at::ones({3})}).size(), 2u);
}

TEST(WatchTest, notices_a_write_and_a_request_to_hash_anew) {
  Watch watch;
  const std::vector<at::Tensor> tensors{at::ones({3})};
  EXPECT_EQ(watch.tensors(), nullptr);
  const std::string digest = watch.digest(tensors);
  EXPECT_NE(watch.tensors(), nullptr);
  EXPECT_TRUE(watch.still_has(tensors, digest));
  watch.refresh();
  EXPECT_FALSE(watch.still_has(tensors, digest));
  EXPECT_EQ(watch.digest(tensors), digest);
  EXPECT_TRUE(watch.still_has(tensors, digest));
  tensors[0].add_(1);
  EXPECT_FALSE(watch.still_has(tensors, digest));
  EXPECT_NE(watch.digest(tensors), digest);
}

TEST(WatchTest, refuses_a_tensor_that_cannot_be_hashed) {
  Watch watch;
  EXPECT_THROW(watch.digest({at::ones({2, 2}).to_sparse()}), c10::Error);
}

}  // namespace
}  // namespace modcache::module
