// SPDX-License-Identifier: Apache-2.0
//
// Runs the targets of tests/fuzz on their corpus, and on some thousand mutations of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "fuzz/targets.h"
#include "support/captured_log.h"
#include "support/directory_bytes.h"

namespace modcache::fuzz {
namespace {

constexpr int kMutations = 2000;

std::vector<std::string> corpus_of(const Target& target) {
  std::vector<std::filesystem::path> paths;
  const std::string folder = std::string(MODCACHE_FUZZ_CORPUS "/") + target.name;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> corpus;
  for (const auto& path : paths) corpus.push_back(testing::file_bytes(path));
  return corpus;
}

// Makes one or a few changes of the kinds that break readers: bits, sizes, cuts, repeated pieces.
std::string mutated(std::string bytes, std::mt19937& random) {
  const auto below = [&random](std::size_t limit) {
    return random() % std::max<std::size_t>(limit, 1);
  };
  for (std::size_t times = 1 + below(4); times > 0; --times) {
    const std::size_t at = below(bytes.size());
    switch (below(6)) {
      case 0:
        if (!bytes.empty()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 1:
        if (!bytes.empty()) bytes[at] = static_cast<char>(below(256));
        break;
      case 2: bytes.resize(at); break;
      case 3: bytes.insert(at, bytes.substr(at, below(100))); break;
      case 4: bytes.erase(at, below(70)); break;
      default: {
        const std::uint64_t sizes[] = {0, 1, 0x7fffffff, 0xffffffff, ~0ULL, bytes.size()};
        const std::uint64_t size = sizes[below(6)];
        const std::size_t width = std::size_t{1} << below(4);
        if (at + width <= bytes.size()) std::memcpy(bytes.data() + at, &size, width);
      }
    }
  }
  return bytes;
}

class FuzzCorpusTest : public ::testing::TestWithParam<Target> {};

TEST_P(FuzzCorpusTest, is_replayed_with_mutations) {
  const testing::CapturedLog silence;
  const std::vector<std::string> corpus = corpus_of(GetParam());
  ASSERT_FALSE(corpus.empty());
  GetParam().run("");
  for (const std::string& bytes : corpus) GetParam().run(bytes);
  std::mt19937 random(1);
  for (int i = 0; i < kMutations; ++i) {
    GetParam().run(mutated(corpus[random() % corpus.size()], random));
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzCorpusTest, ::testing::ValuesIn(targets()),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace modcache::fuzz
