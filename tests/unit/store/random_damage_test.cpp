// SPDX-License-Identifier: Apache-2.0
//
// A thousand kinds of damage, each to its own copy of one directory: nothing crashes, no value is
// wrong, everything undamaged is still there, verify finds every loss, and a repair leaves a clean
// directory.
//
// DAMAGES and DAMAGE_SEED choose others; a failure reports its seed.
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/log.h"
#include "store/directory/notes.h"
#include "store/segment/record.h"
#include "store/verify/verify.h"
#include "support/damage.h"
#include "support/damage_base.h"
#include "support/fault_file_system.h"
#include "support/store_fixture.h"

namespace modcache::store {
namespace {

using testing::context_named;
using testing::Damage;
using Base = testing::DamageBase;
using Expected = testing::ExpectedEntry;
using testing::get;
using testing::open_store;
using testing::put;

namespace files = std::filesystem;

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

class RandomDamageTest : public ::testing::Test {
 protected:
  void SetUp() override { set_log_level(LogLevel::kOff); }
  void TearDown() override { set_log_level(LogLevel::kWarning); }

  static Base& base(std::uint64_t number) {
    if (number % 7 == 6) return long_keys();
    return number % 2 == 0 ? closed() : open();
  }
  static Base& closed() {
    static Base* const base = new Base(0, true);
    return *base;
  }
  static Base& open() {
    static Base* const base = new Base(0, false);
    return *base;
  }
  static Base& long_keys() {
    static Base* const base = new Base(3000, false);
    return *base;
  }

  std::string copy_of(const std::string& directory, const std::string& name) {
    const std::string target = directory_ / name;
    files::remove_all(target);
    files::copy(directory, target, files::copy_options::recursive);
    return target;
  }

  static StoreOptions options_for(const std::string& directory) {
    StoreOptions options;
    options.directory = directory;
    options.read_via = ReadVia::kPread;
    return options;
  }

  // Returns the keys whose values the store gives; none may be wrong. Drops broken entries, as the
  // disk tier does.
  static std::set<const Expected*> read_all(Store& store, const Base& base) {
    std::set<const Expected*> right;
    for (const Expected& entry : base.expected()) {
      const EntryId id{entry.context, entry.key};
      auto found = store.find(id);
      if (!found.is_ok()) {
        if (found.status().code() == StatusCode::kCorruption) (void)store.drop(id, 0);
        continue;
      }
      std::string payload(found.value()->payload_size_bytes(), '?');
      if (!found.value()->read_payload(payload.data()).is_ok()) {
        (void)store.drop(id, found.value()->sequence());
        continue;
      }
      EXPECT_EQ(found.value()->header(), "header");
      if (payload == entry.value && !entry.value.empty()) {
        right.insert(&entry);
      } else {
        ADD_FAILURE() << "a wrong value for " << entry.key.substr(0, 10) << ": "
                      << payload.substr(0, 20) << ", not " << entry.value.substr(0, 20);
      }
    }
    return right;
  }

  // Returns the entries whose record is unchanged.
  static std::set<const Expected*> with_whole_record(const std::string& directory,
                                                     const Base& base) {
    std::map<std::string, std::string> bytes;
    std::set<const Expected*> whole;
    for (const Expected& entry : base.expected()) {
      if (entry.value.empty()) continue;
      const auto [file, is_new] = bytes.emplace(entry.file, "");
      if (is_new) file->second = testing::file_bytes(directory + "/" + entry.file);
      if (file->second.compare(0, kSegmentHeaderSizeBytes, entry.segment_header) == 0 &&
          file->second.size() >= entry.offset &&
          file->second.compare(entry.offset, entry.record.size(), entry.record) == 0) {
        whole.insert(&entry);
      }
    }
    return whole;
  }

  static bool lost_database_and_segment(const std::string& directory, const Base& base) {
    const auto is_as_it_was = [&](const std::string& file) {
      return testing::file_bytes(directory + "/" + file) ==
             testing::file_bytes(base.path() + "/" + file);
    };
    if (is_as_it_was("index.sqlite")) return false;
    const auto segments = testing::segment_files(base.path());
    return std::any_of(segments.begin(), segments.end(), [&](const std::string& path) {
      return !is_as_it_was(files::relative(path, base.path()));
    });
  }

  // Returns those of `whole` to which SQL still finds the way, or all where it finds no row at all.
  std::set<const Expected*> with_row(const std::string& directory,
                                     const std::set<const Expected*>& whole) {
    const std::string asked = copy_of(directory, "asked");
    auto database =
        Database::open(fs::posix_file_system(), asked + "/index.sqlite", Database::Mode::kWrite, 0);
    if (!database.is_ok()) return whole;
    std::set<const Expected*> named;
    for (const Expected* entry : whole) {
      const auto row = Base::row_of(*database.value(), *entry);
      if (!row) return whole;
      if (*row == entry->row) named.insert(entry);
    }
    return named;
  }

  static std::string names(const std::set<const Expected*>& entries) {
    std::string text;
    for (const Expected* entry : entries) text += entry->key.substr(0, 8) + " ";
    return text;
  }

  static bool includes(const std::set<const Expected*>& all,
                       const std::set<const Expected*>& some) {
    return std::includes(all.begin(), all.end(), some.begin(), some.end());
  }

  // Everything still works: what is put is found, also by the next process that opens the
  // directory.
  static void expect_usable(const std::string& directory, const Base& base) {
    const Expected& known = base.expected()[4];
    const Context fresh = context_named("fresh");
    {
      auto store = open_store(options_for(directory));
      ASSERT_NE(store, nullptr);
      (void)read_all(*store, base);
      if (!store->is_attached()) store = open_store(options_for(directory));
      EXPECT_TRUE(put(*store, fresh, "new", "new value").is_ok());
      EXPECT_TRUE(put(*store, known.context, known.key, "replaced").is_ok());
      EXPECT_TRUE(store->flush().is_ok());
    }
    auto store = open_store(options_for(directory));
    EXPECT_EQ(get(*store, fresh, "new"), "new value");
    EXPECT_EQ(get(*store, known.context, known.key), "replaced");
    EXPECT_TRUE(store->clear({"fresh", ""}).is_ok());
    EXPECT_EQ(get(*store, fresh, "new"), "<missing>");
  }

  void expect_refused(const std::string& damaged) {
    const auto before = testing::all_bytes(damaged);
    for (const bool is_writable : {true, false}) {
      StoreOptions options = options_for(damaged);
      options.writable = is_writable;
      EXPECT_EQ(Store::open(fs::posix_file_system(), options).status().code(),
                StatusCode::kUnsupportedVersion);
    }
    VerifyOptions options;
    options.directory = damaged;
    EXPECT_EQ(verify_directory(fs::posix_file_system(), options).status().code(),
              StatusCode::kUnsupportedVersion);
    EXPECT_EQ(repair_directory(fs::posix_file_system(), options).status().code(),
              StatusCode::kUnsupportedVersion);
    EXPECT_EQ(testing::all_bytes(damaged), before);
    ++refused_;
  }

  // `is_thorough`: also checks that verifying changes no byte, and that everything can be used
  // afterwards.
  void check(const std::string& damaged, const Base& base, bool is_thorough) {
    const std::map<std::string, std::string> no_files;
    VerifyOptions options;
    options.directory = damaged;
    const auto before = is_thorough ? testing::all_bytes(damaged) : no_files;
    auto verified = verify_directory(fs::posix_file_system(), options);
    EXPECT_EQ(is_thorough ? testing::all_bytes(damaged) : no_files, before);
    if (verified.status().code() == StatusCode::kUnsupportedVersion) {
      return expect_refused(damaged);
    }
    ASSERT_TRUE(verified.is_ok()) << verified.status().message();
    if (!verified.value().is_clean()) ++found_;
    auto whole = with_whole_record(damaged, base);
    // The rest may be outdated: nobody knows what was lost, so the test demands nothing.
    if (lost_database_and_segment(damaged, base)) whole.clear();
    const auto named = with_row(damaged, whole);

    const std::string repaired = copy_of(damaged, "repaired");
    {
      auto store = open_store(options_for(damaged));
      ASSERT_NE(store, nullptr);
      const auto given = read_all(*store, base);
      if (!includes(given, all_of(base))) {
        EXPECT_FALSE(verified.value().is_clean()) << "not given: " << names(given);
        ++harmful_;
      }
    }
    {
      auto store = open_store(options_for(damaged));
      ASSERT_NE(store, nullptr);
      const auto given = read_all(*store, base);
      EXPECT_TRUE(includes(given, named)) << names(given) << "\nof\n" << names(named);
    }
    if (is_thorough) expect_usable(damaged, base);

    options.directory = repaired;
    auto repairs = repair_directory(fs::posix_file_system(), options);
    ASSERT_TRUE(repairs.is_ok()) << repairs.status().message();
    for (const Finding& finding : repairs.value().after.findings) {
      ADD_FAILURE() << finding_name(finding.kind) << " " << finding.file << ": " << finding.what;
    }
    {
      auto store = open_store(options_for(repaired));
      const auto given = read_all(*store, base);
      EXPECT_TRUE(includes(given, whole)) << names(given) << "\nof\n" << names(whole);
    }
    if (is_thorough) expect_usable(repaired, base);
  }

  static std::set<const Expected*> all_of(const Base& base) {
    std::set<const Expected*> all;
    for (const Expected& entry : base.expected()) {
      if (!entry.value.empty()) all.insert(&entry);
    }
    return all;
  }

  testing::TemporaryDirectory directory_;
  int found_ = 0;
  int harmful_ = 0;
  int refused_ = 0;
};

TEST_F(RandomDamageTest, bases_are_whole_and_verify_clean) {
  for (const std::uint64_t i : {0, 1, 6}) {
    const std::string copy = copy_of(base(i).path(), "copy");
    VerifyOptions options;
    options.directory = copy;
    auto verified = verify_directory(fs::posix_file_system(), options);
    ASSERT_TRUE(verified.is_ok()) << verified.status().message();
    for (const Finding& finding : verified.value().findings) {
      ADD_FAILURE() << finding_name(finding.kind) << " " << finding.file << ": " << finding.what;
    }
    EXPECT_EQ(verified.value().whole_entries, static_cast<std::int64_t>(all_of(base(i)).size()));
    EXPECT_GT(verified.value().segments, 1);
    EXPECT_EQ(read_all(*open_store(options_for(copy)), base(i)), all_of(base(i)));
    expect_usable(copy, base(i));
  }
}

// Split into slices, so that each takes seconds.
class RandomDamagesTest : public RandomDamageTest,
                          public ::testing::WithParamInterface<std::uint64_t> {};

TEST_P(RandomDamagesTest, never_crash_nor_give_a_wrong_value_and_are_found_and_mended) {
  constexpr std::uint64_t kSlices = 5;
  const std::uint64_t count = number_from("DAMAGES", 1000) / kSlices;
  const std::uint64_t first = number_from("DAMAGE_SEED", 1) + GetParam() * count;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const Base& base = this->base(seed);
    const std::string damaged = copy_of(base.path(), "damaged");
    Damage damage(damaged, base.older(), seed * 0x9e3779b97f4a7c15ULL);
    std::string what;
    while (what.empty()) what = damage.inflict();
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + what);
    check(damaged, base, seed % 8 == 0);
    if (HasFatalFailure()) return;
  }
  RecordProperty("found", found_);
  RecordProperty("harmful", harmful_);
  RecordProperty("refused", refused_);
}

INSTANTIATE_TEST_SUITE_P(Slices, RandomDamagesTest, ::testing::Range<std::uint64_t>(0, 5));

// Damages the files of a store in use: what it has read and what it has queued stays right.
TEST_F(RandomDamageTest, while_the_store_is_open) {
  const std::uint64_t first = number_from("DAMAGE_SEED", 1);
  for (std::uint64_t seed = first; seed < first + 150; ++seed) {
    const Base& base = this->base(seed % 2);
    const std::string damaged = copy_of(base.path(), "damaged");
    auto store = open_store(options_for(damaged));
    if (seed % 3 != 0) {
      EXPECT_EQ(read_all(*store, base), all_of(base));
    }
    Damage damage(damaged, base.older(), seed * 0x9e3779b97f4a7c15ULL);
    damage.spare_open_files();
    std::string what;
    while (what.empty()) what = damage.inflict();
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + what);
    const Context fresh = context_named("fresh");
    const auto sequence = put(*store, fresh, "new", "new value");
    const bool is_stored = sequence.is_ok() && store->flush().is_ok() && store->is_attached();
    (void)read_all(*store, base);
    const std::string value = get(*store, fresh, "new");
    EXPECT_TRUE(value == "new value" || !is_stored || value[0] == '<') << value;
    store = nullptr;
    auto next = Store::open(fs::posix_file_system(), options_for(damaged));
    if (next.status().code() == StatusCode::kUnsupportedVersion) continue;
    ASSERT_TRUE(next.is_ok()) << next.status().message();
    (void)read_all(*next.value(), base);
    next.value() = nullptr;
    VerifyOptions options;
    options.directory = damaged;
    auto repairs = repair_directory(fs::posix_file_system(), options);
    ASSERT_TRUE(repairs.is_ok()) << repairs.status().message();
    EXPECT_TRUE(repairs.value().after.is_clean());
    (void)read_all(*open_store(options_for(damaged)), base);
  }
}

// The disk is full from some moment on, and later has room again.
TEST_F(RandomDamageTest, a_disk_that_is_full_from_some_call_on) {
  for (std::int64_t call = 1; call <= 60; ++call) {
    SCOPED_TRACE("call " + std::to_string(call));
    const Base& base = this->base(static_cast<std::uint64_t>(call) % 2);
    const std::string damaged = copy_of(base.path(), "damaged");
    testing::FaultFileSystem full(fs::posix_file_system());
    full.fail_at(call, call % 3 == 0 ? testing::Fault::kShortWrite : testing::Fault::kNoSpace,
                 true);
    auto store = Store::open(full, options_for(damaged));
    if (store.is_ok()) {
      for (int i = 0; i < 40; ++i) {
        const Context fresh = context_named("fresh");
        (void)put(*store.value(), fresh, std::to_string(i), std::string(3000, 'n'));
        if (i % 8 == 7) (void)store.value()->flush();
      }
      (void)store.value()->clear({"nobody", ""});
      EXPECT_EQ(read_all(*store.value(), base), all_of(base));
    }
    full.heal();
    store = Status::not_found();
    VerifyOptions options;
    options.directory = damaged;
    auto verified = verify_directory(fs::posix_file_system(), options);
    ASSERT_TRUE(verified.is_ok()) << verified.status().message();
    EXPECT_TRUE(verified.value().is_clean());
    EXPECT_EQ(read_all(*open_store(options_for(damaged)), base), all_of(base));
    expect_usable(damaged, base);
  }
}

}  // namespace
}  // namespace modcache::store
