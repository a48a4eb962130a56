// SPDX-License-Identifier: Apache-2.0
//
// Hostile files: directories and packs in which somebody changed fields, sizes and texts, and
// computed the checksums anew (hostile/forger.h), read by everything that reads them
// (hostile/trial.h).
//
//     modcache_hostile_files [--seconds 30] [--seed 1] [--only segment] [--trials 1] [--dir DIR]
//
// Trials run in a child: a crash, a wait of a minute and a promise that does not hold are failures,
// each told with the seed that makes it again: --seed SEED --only KIND --trials 1.
// Exit status 1: there were failures.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "fuzz/hostile/trial.h"

namespace modcache::fuzz {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kKinds = std::size(kKindNames);
constexpr std::chrono::minutes kMostOfOneTrial{1};
constexpr std::chrono::minutes kProgress{1};
// More than any trial needs, and less than what a size that was believed asks for.
constexpr rlim_t kMostMemoryBytes = rlim_t{4} << 30;
constexpr rlim_t kMostFileBytes = 64 << 20;

struct Options {
  std::int64_t seconds = 30;
  std::uint64_t seed = 1;
  std::uint64_t trials = 0;  // 0: as many as there is time for
  std::string only;
  std::string directory;  // empty: a new one, removed afterwards
};

struct Shared {
  std::atomic<std::uint64_t> done{0};  // trials that ended, well or not
};

Kind kind_of(const Options& options, std::uint64_t number) {
  for (std::uint64_t k = 0; k < kKinds; ++k) {
    if (options.only == kKindNames[k]) return static_cast<Kind>(k);
  }
  return static_cast<Kind>(number % kKinds);
}

class Run {
 public:
  Run(const Options& options, Shared& shared)
      : options_(options), shared_(shared), base_(options.directory) {}

  bool run() {
    const auto end = begin_ + std::chrono::seconds(options_.seconds);
    while (!is_over(end)) {
      const pid_t child = ::fork();
      if (child == 0) work(end);
      if (child < 0) return false;
      watch(child);
    }
    std::printf("%llu trials, %llu failures\n", static_cast<unsigned long long>(shared_.done),
                static_cast<unsigned long long>(failures_));
    return failures_ == 0 && shared_.done > 0;
  }

 private:
  bool is_over(Clock::time_point end) const {
    return options_.trials > 0 ? shared_.done >= options_.trials : Clock::now() >= end;
  }

  [[noreturn]] void work(Clock::time_point end) const {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit memory{kMostMemoryBytes, kMostMemoryBytes};
    const rlimit file{kMostFileBytes, kMostFileBytes};
    (void)::setrlimit(RLIMIT_AS, &memory);
    (void)::setrlimit(RLIMIT_FSIZE, &file);
    set_log_level(LogLevel::kOff);
    const std::string folder = options_.directory + "/trial";
    std::filesystem::create_directories(folder);
    while (!is_over(end)) {
      const std::uint64_t number = shared_.done;
      Trial(base_, folder, kind_of(options_, number), options_.seed + number).run();
      ++shared_.done;
    }
    ::_exit(0);
  }

  void watch(pid_t child) {
    std::uint64_t number = shared_.done;
    auto since = Clock::now();
    auto next_report = since + kProgress;
    int status = 0;
    while (::waitpid(child, &status, WNOHANG) == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const auto now = Clock::now();
      if (shared_.done != number) {
        number = shared_.done;
        since = now;
      }
      if (now - since > kMostOfOneTrial) {
        ::kill(child, SIGKILL);
        ::waitpid(child, &status, 0);
        return fail("waited for a minute");
      }
      if (now < next_report) continue;
      next_report = now + kProgress;
      std::printf("%5lld s: %llu trials, %llu failures\n",
                  static_cast<long long>(
                      std::chrono::duration_cast<std::chrono::seconds>(now - begin_).count()),
                  static_cast<unsigned long long>(number),
                  static_cast<unsigned long long>(failures_));
      std::fflush(stdout);
    }
    if (WIFSIGNALED(status)) fail("ended by signal " + std::to_string(WTERMSIG(status)));
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0) fail("ended");
  }

  void fail(const std::string& how) {
    const std::uint64_t number = shared_.done;
    std::printf("FAILED: --seed %llu --only %s --trials 1: %s\n",
                static_cast<unsigned long long>(options_.seed + number),
                kKindNames[static_cast<std::size_t>(kind_of(options_, number))], how.c_str());
    std::fflush(stdout);
    ++failures_;
    ++shared_.done;
  }

  const Options& options_;
  Shared& shared_;
  const Base base_;
  const Clock::time_point begin_ = Clock::now();
  std::uint64_t failures_ = 0;
};

}  // namespace
}  // namespace modcache::fuzz

int main(int argc, char** argv) {
  namespace fuzz = modcache::fuzz;
  fuzz::Options options;
  CLI::App arguments("Files that were changed by somebody who computes their checksums anew.");
  arguments.add_option("--seconds", options.seconds)->capture_default_str();
  arguments.add_option("--seed", options.seed, "Of the first trial; each takes the next")
      ->capture_default_str();
  arguments.add_option("--trials", options.trials, "Instead of --seconds");
  arguments.add_option("--only", options.only)
      ->check(CLI::IsMember({"segment", "pack", "map", "control"}));
  arguments.add_option("--dir", options.directory, "An empty one; a new one by default");
  CLI11_PARSE(arguments, argc, argv);
  const bool is_own = options.directory.empty();
  if (is_own) {
    std::string name =
        (std::filesystem::temp_directory_path() / "modcache-hostile-XXXXXX").string();
    options.directory = ::mkdtemp(name.data());
  }
  void* memory = ::mmap(nullptr, sizeof(fuzz::Shared), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 2;
  auto* shared = new (memory) fuzz::Shared;
  const bool is_ok = fuzz::Run(options, *shared).run();
  std::printf("%s\n", is_ok ? "passed" : "FAILED");
  std::error_code ignored;
  if (is_own) std::filesystem::remove_all(options.directory, ignored);
  return is_ok ? 0 : 1;
}
