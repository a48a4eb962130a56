// SPDX-License-Identifier: Apache-2.0
//
// Power loss at any call: opens directories in a state that a disk could have them in then. They
// hold everything that was confirmed, and nothing wrong. POWER_LOSS_LIVES in the environment asks
// for more.
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <filesystem>
#include <random>
#include <set>
#include <string>

#include "support/captured_log.h"
#include "support/directory_bytes.h"
#include "support/fault_file_system.h"
#include "support/store_life.h"
#include "support/verified.h"

namespace modcache::store {
namespace {

using testing::DiskModel;
using testing::Fault;
using testing::Ledger;
using testing::StoreLife;

int lives() {
  const char* wanted = std::getenv("POWER_LOSS_LIVES");
  return wanted != nullptr ? std::atoi(wanted) : 10;
}
constexpr int kLossesPerLife = 16;

// The directory after the loss, and the entries that it must hold.
struct Loss {
  std::string directory;
  Ledger promised;
};

// A store that lives on a modelled disk.
class PowerLossTest : public testing::StoreTest, public ::testing::WithParamInterface<Durability> {
 protected:
  // Runs a whole life, with power loss before each of the given calls; returns the number of calls.
  std::int64_t live(const std::set<std::int64_t>& at_calls, std::uint64_t seed,
                    std::deque<Loss>& losses) {
    const std::string root = directory_ / "disk";
    std::filesystem::create_directory(root);
    DiskModel disk(root);
    testing::FaultFileSystem files(fs::posix_file_system(), &disk);
    files.faults().fail_at(0, Fault::kIoError, false, testing::kEveryCall);
    Ledger ledger;
    files.faults().watch([&](std::int64_t call) {
      if (at_calls.count(call) == 0) return;
      const std::string after = directory_ / ("after-" + std::to_string(call));
      losses.push_back({after, ledger});
      disk.lose_power(seed + static_cast<std::uint64_t>(call), after);
    });
    StoreOptions options;
    options.directory = root + "/cache";
    options.durability = GetParam();
    StoreLife(files, options, ledger, [](const std::string&, const std::string&) {}).run();
    std::filesystem::remove_all(root);
    return files.faults().calls();
  }

  static void expect_whole(const Loss& loss) {
    StoreOptions options;
    options.directory = loss.directory + "/cache";
    testing::FaultFileSystem files(fs::posix_file_system());
    const std::string boot_id = loss.directory + "/boot_id";
    testing::write_file(boot_id, "01234567-89ab-cdef-0123-456789abcdef\n");
    files.redirect("/proc/sys/kernel/random/boot_id", boot_id);
    // Entries that were not promised may be broken; they are misses, and can be repaired away.
    const bool is_mended = loss.promised.names().size() % 2 == 0;
    if (is_mended) {
      (void)testing::open_store(options, files);
      repair(files, options.directory);
    }
    for (const bool is_rebuilt : {false, true}) {
      if (is_rebuilt) std::filesystem::remove(options.directory + "/index.sqlite");
      auto store = testing::open_store(options, files);
      ASSERT_NE(store, nullptr);
      if (is_mended && !is_rebuilt) testing::expect_clean(files, options.directory);
      StoreLife::read(
          *store, loss.promised, [&](const std::string& name, const std::string& found) {
            // A broken entry is a miss, where a miss is allowed.
            EXPECT_TRUE(loss.promised.allows_after_power_loss(
                name, found.front() == '<' ? Ledger::kMissing : found))
                << "found for '" << name << "': " << found.substr(0, 80)
                << (is_rebuilt ? " (rebuilt)" : "") << "; may be:" << loss.promised.expected(name);
          });
      EXPECT_TRUE(testing::put(*store, StoreLife::context(), "afterwards", "value").is_ok());
    }
    std::filesystem::remove_all(loss.directory);
  }

  static void repair(fs::FileSystem& files, const std::string& directory) {
    VerifyOptions options;
    options.directory = directory;
    auto repairs = repair_directory(files, options);
    EXPECT_TRUE(repairs.is_ok()) << repairs.status().message();
  }

  const testing::CapturedLog quiet_;
};

TEST_P(PowerLossTest, keeps_what_was_confirmed_and_gives_nothing_wrong) {
  std::deque<Loss> losses;
  const std::int64_t calls = live({}, 0, losses);
  ASSERT_GT(calls, 100);
  std::mt19937_64 random(20);
  for (int life = 0; life < lives(); ++life) {
    std::set<std::int64_t> at_calls;
    for (int i = 0; i < kLossesPerLife; ++i) {
      at_calls.insert(1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(calls)));
    }
    live(at_calls, random(), losses);
    for (; !losses.empty(); losses.pop_front()) {
      SCOPED_TRACE("life " + std::to_string(life) + ", " + losses.front().directory);
      expect_whole(losses.front());
    }
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, PowerLossTest,
                         ::testing::Values(Durability::kRelaxed, Durability::kStrict),
                         [](const auto& tested) {
                           return tested.param == Durability::kStrict ? "strict" : "relaxed";
                         });

}  // namespace
}  // namespace modcache::store
