// SPDX-License-Identifier: Apache-2.0
//
// Directories that cannot be written, or must not be.
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>

#include "store/directory/directory.h"
#include "support/child_process.h"
#include "support/directory_bytes.h"
#include "support/store_fixture.h"

namespace modcache::store {
namespace {

using testing::all_bytes;
using testing::ChildProcess;
using testing::get;
using testing::open_store;
using testing::put;

class StoreReadOnlyTest : public testing::StoreTest {
 protected:
  ~StoreReadOnlyTest() override { set_permissions(0755, 0644); }

  void fill() {
    auto store = open_store(directory_.path());
    ASSERT_TRUE(put(*store, context_, "key", "value").is_ok());
    ASSERT_TRUE(store->flush().is_ok());
  }
  void set_permissions(unsigned directories, unsigned files) {
    const auto set = [&](const std::filesystem::path& path) {
      const unsigned mode = std::filesystem::is_directory(path) ? directories : files;
      std::filesystem::permissions(path, static_cast<std::filesystem::perms>(mode));
    };
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_.path())) {
      set(entry.path());
    }
    set(directory_.path());
  }
  // Root may write everything, so this runs as another user.
  static int run_as_nobody(const std::function<int()>& run) {
    constexpr uid_t kNobody = 65534;
    return ChildProcess([&] {
             if (::getuid() == 0 && ::setresuid(kNobody, kNobody, kNobody) != 0) return 99;
             return run();
           })
        .wait();
  }
  // Returns 0 when everything is as it should be; else the number of the first expectation that
  // failed.
  int check_reading(bool writable) {
    StoreOptions options;
    options.directory = directory_.path();
    options.writable = writable;
    auto store = Store::open(fs::posix_file_system(), std::move(options));
    if (!store.is_ok()) return 1;
    if (!store.value()->is_read_only()) return 2;
    if (get(*store.value(), context_, "key") != "value") return 3;
    if (get(*store.value(), context_, "other") != "<missing>") return 4;
    if (put(*store.value(), context_, "other", "x").status().code() != StatusCode::kIoError) {
      return 5;
    }
    if (store.value()->clear({}).is_ok()) return 6;
    if (!store.value()->flush().is_ok()) return 7;
    if (store.value()->totals().value().entries != 1) return 8;
    if (!store.value()->is_attached()) return 9;
    return 0;
  }
};

TEST_F(StoreReadOnlyTest, reads_a_directory_that_it_may_not_write) {
  fill();
  set_permissions(0555, 0444);
  const auto before = all_bytes(directory_.path());
  EXPECT_EQ(run_as_nobody([this] { return check_reading(true); }), 0);
  EXPECT_EQ(all_bytes(directory_.path()), before);
}

TEST_F(StoreReadOnlyTest, reads_such_a_directory_whatever_is_missing) {
  fill();
  for (const char* missing : {"index.sqlite-shm", "index.sqlite-wal", "index.sqlite", "control"}) {
    set_permissions(0755, 0644);
    std::filesystem::remove(directory_ / missing);
    set_permissions(0555, 0444);
    EXPECT_EQ(run_as_nobody([this] { return check_reading(true); }), 0) << missing;
  }
}

// A process that was killed leaves a log that is not in the database yet.
TEST_F(StoreReadOnlyTest, reads_what_is_only_in_the_log) {
  EXPECT_EQ(ChildProcess([this] {
              auto store = open_store(directory_.path());
              (void)put(*store, context_, "key", "value");
              (void)store->flush();
              ::_exit(0);
              return 1;
            }).wait(),
            0);
  ASSERT_GT(std::filesystem::file_size(directory_ / "index.sqlite-wal"), 0u);
  for (const char* missing : {"", "index.sqlite-shm"}) {
    set_permissions(0755, 0644);
    if (*missing != '\0') std::filesystem::remove(directory_ / missing);
    set_permissions(0555, 0444);
    EXPECT_EQ(run_as_nobody([this] { return check_reading(true); }), 0) << missing;
  }
}

TEST_F(StoreReadOnlyTest, changes_nothing_when_it_shall_not_write) {
  fill();
  for (const char* without : {"", "index.sqlite-shm", "index.sqlite-wal", "index.sqlite"}) {
    if (*without != '\0') std::filesystem::remove(directory_ / without);
    const auto before = all_bytes(directory_.path());
    EXPECT_EQ(check_reading(false), 0) << without;
    EXPECT_EQ(all_bytes(directory_.path()), before) << without;
  }
}

TEST_F(StoreReadOnlyTest, sees_what_a_writer_commits_and_clears) {
  fill();
  auto writer = open_store(directory_.path());
  StoreOptions options;
  options.directory = directory_.path();
  options.writable = false;
  auto reader = open_store(options);
  EXPECT_EQ(get(*reader, context_, "key"), "value");
  ASSERT_TRUE(put(*writer, context_, "key", "replaced").is_ok());
  ASSERT_TRUE(writer->flush().is_ok());
  EXPECT_EQ(get(*reader, context_, "key"), "replaced");
  EXPECT_EQ(writer->clear({}).value(), 1);
  EXPECT_EQ(get(*reader, context_, "key"), "<missing>");
  EXPECT_TRUE(reader->is_attached());
}

// A read-only store has no thread that would let go of it earlier.
TEST_F(StoreReadOnlyTest, lets_go_at_its_next_call_of_what_is_gone) {
  for (const bool is_batch : {false, true}) {
    fill();
    auto writer = open_store(directory_.path());
    StoreOptions options;
    options.directory = directory_.path();
    options.writable = false;
    auto reader = open_store(options);
    EXPECT_EQ(get(*reader, context_, "key"), "value");
    ASSERT_TRUE(writer->evict(0).is_ok());
    const Directory directory(fs::posix_file_system(), directory_.path());
    EXPECT_EQ(directory.retired_segments().value().size(), 1u);
    if (is_batch) {
      EXPECT_FALSE(reader->find_all(context_, {"no such key"}).has(0));
    } else {
      EXPECT_EQ(get(*reader, context_, "no such key"), "<missing>");
    }
    ASSERT_TRUE(writer->evict(0).is_ok());
    EXPECT_TRUE(directory.retired_segments().value().empty());
  }
}

TEST_F(StoreReadOnlyTest, says_why_a_directory_cannot_be_used) {
  testing::write_file(directory_ / "file", "x");
  StoreOptions options;
  options.directory = directory_ / "file";
  const Status file = Store::open(fs::posix_file_system(), options).status();
  EXPECT_EQ(file.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(file.message(), ::testing::HasSubstr("is a file, but no pack of modcache"));
  options.directory = directory_ / "file/below";
  EXPECT_EQ(Store::open(fs::posix_file_system(), options).status().code(), StatusCode::kIoError);
  options.directory = directory_ / "missing";
  options.writable = false;
  EXPECT_TRUE(Store::open(fs::posix_file_system(), options).status().is_not_found());
  options.directory = "";
  EXPECT_EQ(Store::open(fs::posix_file_system(), options).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace modcache::store
