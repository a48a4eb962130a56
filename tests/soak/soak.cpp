// SPDX-License-Identifier: Apache-2.0
//
// Soak: processes that share one directory, which is far too small for what they store, and that
// die at any moment. Every value is a function of its key, so that every hit can be checked.
//
//     modcache_soak [--seconds 60] [--processes 4] [--seed 1] [--budget 67108864] [--dir DIR]
//
// Exit status 1: a wrong value, damage, or a directory larger than its budget and one segment for
// each process.
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <map>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "fs/posix_file_system.h"
#include "soak/soak_worker.h"
#include "store/control/directory_mode.h"
#include "store/verify/verify.h"

namespace modcache::soak {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kSample{50};
constexpr std::chrono::seconds kProgress{5};
constexpr std::uint64_t kSegmentsPerBudget = 16;
// Of a directory's own files, and of what is in flight between two looks.
constexpr std::uint64_t kSlackBytes = 1 << 20;

struct Options {
  std::int64_t seconds = 60;
  std::uint64_t processes = 4;
  std::uint64_t seed = 1;
  std::uint64_t budget_bytes = 64 << 20;
  std::string directory;  // empty: a new one, removed afterwards
};

// The sizes of a directory's files at one moment.
struct Footprint {
  std::uint64_t total_bytes = 0;
  std::map<std::string, std::uint64_t> bytes_by_file;  // by path in the directory
};

Footprint footprint_of(const std::string& directory) {
  Footprint footprint;
  std::error_code error;
  for (auto entry = std::filesystem::recursive_directory_iterator(directory, error);
       !error && entry != std::filesystem::recursive_directory_iterator(); entry.increment(error)) {
    std::error_code gone;
    const auto size = entry->is_regular_file(gone) ? entry->file_size(gone) : 0;
    if (gone) continue;
    footprint.total_bytes += size;
    footprint.bytes_by_file[entry->path().lexically_relative(directory).string()] = size;
  }
  return footprint;
}

class Soak {
 public:
  Soak(const Options& options, Counts& counts)
      : options_(options), counts_(counts), random_(options.seed) {}

  bool run() {
    const auto begin = Clock::now();
    const auto end = begin + std::chrono::seconds(options_.seconds);
    auto next_report = begin + kProgress;
    while (Clock::now() < end) {
      while (workers_.size() < options_.processes) spawn();
      std::this_thread::sleep_for(kSample);
      look();
      reap(WNOHANG);
      if (below(10) == 0) kill_one();
      if (below(100) == 0) change_mode();
      if (Clock::now() >= next_report) {
        report(std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - begin).count());
        next_report += kProgress;
      }
    }
    while (!workers_.empty()) reap(0);
    set_mode(store::DirectoryMode::kOn);
    return conclude();
  }

 private:
  std::uint64_t below(std::uint64_t end) { return random_() % end; }

  void look() {
    Footprint footprint = footprint_of(options_.directory);
    if (footprint.total_bytes > largest_.total_bytes) largest_ = std::move(footprint);
  }

  void spawn() {
    WorkerOptions worker;
    worker.directory = options_.directory;
    worker.budget_bytes = options_.budget_bytes;
    worker.keys = options_.budget_bytes / 2000 * 4;  // some four times what there is room for
    worker.seed = random_();
    worker.milliseconds = static_cast<std::int64_t>(500 + below(8000));
    const pid_t id = ::fork();
    if (id == 0) {
      work(worker, counts_);
      ::_exit(0);
    }
    if (id > 0) workers_[id] = true;
  }

  void reap(int flags) {
    int status = 0;
    const pid_t id = ::waitpid(-1, &status, flags);
    if (id <= 0) return;
    workers_.erase(id);
    if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL) ++crashes_;
    ++deaths_;
  }

  void kill_one() {
    if (workers_.empty()) return;
    auto victim = workers_.begin();
    std::advance(victim, static_cast<std::ptrdiff_t>(below(workers_.size())));
    ::kill(victim->first, SIGKILL);
  }

  void set_mode(store::DirectoryMode mode) {
    (void)store::set_directory_mode(fs::posix_file_system(), options_.directory, mode, 1000);
  }
  // Mostly on.
  void change_mode() {
    const std::uint64_t choice = below(4);
    set_mode(choice == 0   ? store::DirectoryMode::kOff
             : choice == 1 ? store::DirectoryMode::kRead
                           : store::DirectoryMode::kOn);
  }

  void report(std::int64_t seconds) const {
    std::printf(
        "%4lld s: hits %lld, misses %lld, wrong %lld, errors %lld, corrupt %lld, clears %lld, "
        "verified %lld times, damage %lld, deaths %lld, largest %.1f of %.1f MB\n",
        static_cast<long long>(seconds), static_cast<long long>(counts_.hits),
        static_cast<long long>(counts_.misses), static_cast<long long>(counts_.wrong),
        static_cast<long long>(counts_.errors), static_cast<long long>(counts_.corrupt),
        static_cast<long long>(counts_.clears), static_cast<long long>(counts_.verifications),
        static_cast<long long>(counts_.damage), static_cast<long long>(deaths_),
        static_cast<double>(largest_.total_bytes) / 1e6,
        static_cast<double>(options_.budget_bytes) / 1e6);
    std::fflush(stdout);
  }

  bool conclude() {
    store::VerifyOptions verify;
    verify.directory = options_.directory;
    auto verification = store::verify_directory(fs::posix_file_system(), verify);
    if (!verification.is_ok()) {
      std::printf("not verified: %s\n", verification.status().message().c_str());
      return false;
    }
    for (const store::Finding& finding : verification.value().findings) {
      if (finding.is_damage)
        std::printf("damage: %s: %s\n", finding.file.c_str(), finding.what.c_str());
    }
    counts_.damage += verification.value().damage;
    report(options_.seconds);
    const std::uint64_t segment = options_.budget_bytes / kSegmentsPerBudget;
    const std::uint64_t most = options_.budget_bytes + options_.processes * segment + kSlackBytes;
    if (largest_.total_bytes > most) {
      std::printf(
          "the directory was larger than its budget and a segment for each process, %.1f MB\n",
          static_cast<double>(most) / 1e6);
      for (const auto& [file, size_bytes] : largest_.bytes_by_file) {
        std::printf("  %10.3f MB  %s\n", static_cast<double>(size_bytes) / 1e6, file.c_str());
      }
    }
    if (crashes_ > 0) std::printf("%lld processes crashed\n", static_cast<long long>(crashes_));
    const bool has_worked = counts_.hits > 0 && counts_.misses > 0;
    return has_worked && counts_.wrong == 0 && counts_.damage == 0 && crashes_ == 0 &&
           largest_.total_bytes <= most;
  }

  const Options& options_;
  Counts& counts_;
  std::mt19937_64 random_;
  std::map<pid_t, bool> workers_;
  Footprint largest_;
  std::int64_t deaths_ = 0;
  std::int64_t crashes_ = 0;
};

}  // namespace
}  // namespace modcache::soak

int main(int argc, char** argv) {
  namespace soak = modcache::soak;
  soak::Options options;
  CLI::App arguments(
      "Processes that fill, read, evict, verify and die at random on one directory.");
  arguments.add_option("--seconds", options.seconds)->capture_default_str();
  arguments.add_option("--processes", options.processes, "At once")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  arguments.add_option("--seed", options.seed, "The same deaths again")->capture_default_str();
  arguments.add_option("--budget", options.budget_bytes, "Of the directory, in bytes")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  arguments.add_option("--dir", options.directory, "A new one by default, removed afterwards");
  CLI11_PARSE(arguments, argc, argv);
  const bool is_own = options.directory.empty();
  if (is_own) {
    std::string name = (std::filesystem::temp_directory_path() / "modcache-soak-XXXXXX").string();
    options.directory = std::string(::mkdtemp(name.data())) + "/cache";
  }
  void* shared = ::mmap(nullptr, sizeof(soak::Counts), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 2;
  auto* counts = new (shared) soak::Counts;
  const bool is_ok = soak::Soak(options, *counts).run();
  std::printf("%s\n", is_ok ? "passed" : "FAILED");
  std::error_code ignored;
  if (is_own && is_ok) {
    std::filesystem::remove_all(std::filesystem::path(options.directory).parent_path(), ignored);
  } else {
    std::printf("the directory was left in %s\n", options.directory.c_str());
  }
  return is_ok ? 0 : 1;
}
