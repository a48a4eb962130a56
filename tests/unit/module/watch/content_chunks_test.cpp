// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "module/watch/watched_contents.h"

namespace modcache::module {
namespace {

constexpr auto kChunk = static_cast<std::int64_t>(ContentChunks::kChunkBytes);

at::Tensor bytes(std::int64_t count) { return at::zeros({count}, at::kByte); }

// Which chunks no longer match.
std::vector<std::size_t> changed(const ContentChunks& chunks) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < chunks.count(); ++i) {
    if (!chunks.matches(i)) found.push_back(i);
  }
  return found;
}
using Changed = std::vector<std::size_t>;

TEST(ContentChunksTest, cut_tensors_into_chunks_that_know_their_tensor_and_place) {
  const at::Tensor large = bytes(2 * kChunk + 10);
  const at::Tensor small = bytes(3);
  ContentChunks chunks;
  chunks.add(0, large);
  chunks.add(5, small);
  ASSERT_EQ(chunks.count(), 4u);
  EXPECT_EQ(chunks.size_bytes(), large.nbytes() + small.nbytes());
  EXPECT_EQ(chunks.tensor_of(2), 0u);
  EXPECT_EQ(chunks.tensor_of(3), 5u);
  EXPECT_EQ(chunks.end_of(0), ContentChunks::kChunkBytes);
  EXPECT_EQ(chunks.end_of(3), chunks.size_bytes());
  EXPECT_EQ(chunks.chunk_at(0), 0u);
  EXPECT_EQ(chunks.chunk_at(ContentChunks::kChunkBytes - 1), 0u);
  EXPECT_EQ(chunks.chunk_at(ContentChunks::kChunkBytes), 1u);
  EXPECT_EQ(chunks.chunk_at(chunks.size_bytes() - 1), 3u);
}

TEST(ContentChunksTest, tell_in_which_chunk_any_byte_changed) {
  const at::Tensor tensor = bytes(2 * kChunk);
  ContentChunks chunks;
  chunks.add(0, tensor);
  EXPECT_TRUE(chunks.all_match());
  tensor[kChunk] = 1;
  EXPECT_EQ(changed(chunks), (Changed{1}));
  EXPECT_FALSE(chunks.all_match());
  tensor[kChunk] = 0;
  EXPECT_TRUE(chunks.all_match());
}

TEST(ContentChunksTest, of_a_tensor_with_gaps_see_its_elements_and_not_the_gaps) {
  const at::Tensor whole = at::zeros({4, 6});
  const at::Tensor column = whole.select(1, 2);
  ContentChunks chunks;
  chunks.add(0, column);
  EXPECT_TRUE(chunks.has_gaps());
  EXPECT_GT(chunks.size_bytes(), column.nbytes()) << "it takes longer to read";
  whole.select(1, 3).fill_(1);
  EXPECT_TRUE(chunks.all_match());
  whole[3][2] = 1;
  EXPECT_FALSE(chunks.all_match());
}

TEST(ContentChunksTest, of_an_expanded_tensor_see_what_is_there_once) {
  const at::Tensor one = at::zeros({1});
  ContentChunks chunks;
  chunks.add(0, one.expand({1000}));
  EXPECT_TRUE(chunks.all_match());
  one.fill_(1);
  EXPECT_FALSE(chunks.all_match());
}

TEST(ContentChunksTest, are_none_of_an_empty_tensor_or_one_that_lies_elsewhere) {
  ContentChunks chunks;
  chunks.add(0, bytes(0));
  chunks.add(1, at::empty({3}, at::kMeta));
  EXPECT_EQ(chunks.count(), 0u);
  EXPECT_EQ(chunks.size_bytes(), 0u);
  EXPECT_TRUE(chunks.all_match());
}

TEST(ContentChunksTest, taken_over_are_those_that_were_hashed_then) {
  const at::Tensor first = bytes(kChunk + 1);
  const at::Tensor strided = at::zeros({4, 6}).select(1, 2);
  ContentChunks before;
  before.add(0, first);
  before.add(1, strided);
  strided.fill_(1);
  ContentChunks taken;
  taken.add_from(before, 1);
  taken.add_from(before, 7);  // it has none
  EXPECT_EQ(taken.count(), 1u);
  EXPECT_FALSE(taken.all_match());
  strided.fill_(0);
  EXPECT_TRUE(taken.all_match());
}

TEST(ContentChunksTest, can_be_read_apart_from_the_process) {
  if (!ContentChunks::can_be_read_apart()) GTEST_SKIP() << "the kernel forbids it";
  const at::Tensor tensor = bytes(kChunk);
  ContentChunks chunks;
  chunks.add(0, tensor);
  EXPECT_TRUE(chunks.all_match_apart());
  tensor[7] = 1;
  EXPECT_FALSE(chunks.all_match_apart());
}

}  // namespace
}  // namespace modcache::module
