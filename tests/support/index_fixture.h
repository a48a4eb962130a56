// SPDX-License-Identifier: Apache-2.0
//
// A new database, opened for writing.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fs/posix_file_system.h"
#include "store/index/clearing.h"
#include "store/index/index.h"
#include "support/store_fixture.h"
#include "support/temporary_directory.h"

namespace modcache::testing {

class IndexTest : public ::testing::Test {
 protected:
  IndexTest() {
    EXPECT_TRUE(store::Index::create(fs::posix_file_system(), path_).is_ok());
    index_ = open();
  }

  std::unique_ptr<store::Index> open(store::Database::Mode mode = store::Database::Mode::kWrite) {
    auto index = store::Index::open(fs::posix_file_system(), path_, mode, 1000);
    EXPECT_TRUE(index.is_ok()) << index.status().message();
    return index.is_ok() ? std::move(index).value() : nullptr;
  }

  static store::NewRow row(const store::Context& context, const std::string& key,
                           store::Sequence sequence, std::uint64_t segment = 1) {
    return {&context, key, {segment, 64, 3, 5, sequence, 7}, 1000};
  }
  store::Sequence sequence_of(const store::Context& context, const std::string& key) {
    auto location = index_->find(context.digest, key);
    return location.is_ok() ? location.value().sequence : 0;
  }
  std::vector<store::SegmentFacts> facts() {
    std::vector<store::SegmentFacts> facts;
    EXPECT_FALSE(
        store::clear_rows(
            *index_, {{"no such scope", ""}, 0},
            [&](const std::vector<store::SegmentFacts>& seen) -> Result<store::SegmentPlan> {
              facts = seen;
              return Status::io_error("only looking");
            })
            .is_ok());
    return facts;
  }
  static Result<store::SegmentPlan> keep_all(const std::vector<store::SegmentFacts>&) {
    return store::SegmentPlan{};
  }

  TemporaryDirectory directory_;
  const std::string path_ = directory_ / "index.sqlite";
  const store::Context context_ = context_named("scope");
  const store::Context other_ = context_named("other");
  std::unique_ptr<store::Index> index_;
};

}  // namespace modcache::testing
