// SPDX-License-Identifier: Apache-2.0
//
// A directory, a pack beside it in a folder of its own, and a directory to unpack into.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "store/directory/notes.h"
#include "store/pack/pack_format.h"
#include "store/packing/packing.h"
#include "support/store_fixture.h"

namespace modcache::testing {

class PackTest : public StoreTest {
 protected:
  static store::StoreOptions options_of(const std::string& path,
                                        store::ReadVia read_via = store::ReadVia::kMmap) {
    store::StoreOptions options;
    options.directory = path;
    options.read_via = read_via;
    return options;
  }
  static std::string key_of(int i) { return "key " + std::to_string(i); }
  static std::string value_of(int i) {
    return "value " + std::to_string(i) +
           std::string(static_cast<std::size_t>(i) * 7 % 300, static_cast<char>('a' + i % 26));
  }
  void fill(int entries) {
    auto store = open_store(dir_);
    for (int i = 0; i < entries; ++i) {
      ASSERT_TRUE(put(*store, context_, key_of(i), value_of(i)).is_ok());
    }
    ASSERT_TRUE(store->flush().is_ok());
  }
  store::PackSummary pack(const store::ClearFilter& filter = {}) {
    auto summary = store::write_pack(files_, dir_, file_, filter);
    EXPECT_TRUE(summary.is_ok()) << summary.status().message();
    return summary.is_ok() ? summary.value() : store::PackSummary{};
  }
  std::unique_ptr<store::Store> open_pack_file(store::ReadVia read_via = store::ReadVia::kMmap) {
    return open_store(options_of(file_, read_via));
  }

  fs::FileSystem& files_ = fs::posix_file_system();
  TemporaryDirectory folder_;
  const std::string dir_ = directory_ / "cache";
  const std::string other_ = directory_ / "other";
  const std::string file_ = folder_ / "model.pack";
};

}  // namespace modcache::testing
