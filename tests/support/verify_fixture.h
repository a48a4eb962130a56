// SPDX-License-Identifier: Apache-2.0
//
// A directory of twenty entries, looked through and repaired.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "store/index/database.h"
#include "store/verify/verify.h"
#include "support/directory_bytes.h"
#include "support/store_fixture.h"

namespace modcache::testing {

using store::Database;
using store::Repairs;
using store::Verification;
using store::VerifyOptions;

inline std::string value_of(int i) { return std::to_string(i) + std::string(300, 'v'); }

class VerifyTest : public StoreTest {
 protected:
  static constexpr int kEntries = 20;

  void fill() {
    auto store = open_store(directory_.path());
    for (int i = 0; i < kEntries; ++i) {
      ASSERT_TRUE(put(*store, context_, std::to_string(i), value_of(i)).is_ok());
    }
    ASSERT_TRUE(store->flush().is_ok());
  }
  VerifyOptions options() const {
    VerifyOptions options;
    options.directory = directory_.path();
    return options;
  }
  Verification verify() { return verify(options()); }
  static Verification verify(const VerifyOptions& options) {
    auto verification = verify_directory(fs::posix_file_system(), options);
    EXPECT_TRUE(verification.is_ok()) << verification.status().message();
    return verification.is_ok() ? verification.value() : Verification{};
  }
  Repairs repair() {
    auto repairs = repair_directory(fs::posix_file_system(), options());
    EXPECT_TRUE(repairs.is_ok()) << repairs.status().message();
    return repairs.is_ok() ? repairs.value() : Repairs{};
  }
  static std::vector<std::string> kinds_of(const Verification& verification) {
    std::vector<std::string> kinds;
    for (const auto& [kind, count] : verification.counts) kinds.emplace_back(finding_name(kind));
    return kinds;
  }
  void change_rows(const std::string& sql) {
    auto database = Database::open(fs::posix_file_system(), directory_ / "index.sqlite",
                                   Database::Mode::kWrite, 1000);
    ASSERT_TRUE(database.is_ok());
    ASSERT_TRUE(database.value()->execute(sql).is_ok()) << sql;
  }
  int count_right() {
    auto store = open_store(directory_.path());
    int right = 0;
    for (int i = 0; i < kEntries; ++i) {
      if (get(*store, context_, std::to_string(i)) == value_of(i)) ++right;
    }
    return right;
  }
  std::string segment() const { return segment_files(directory_.path()).at(0); }
};

}  // namespace modcache::testing
