// SPDX-License-Identifier: Apache-2.0
//
// modcache evict: makes a directory smaller, by what was used longest ago.
#include "cache/settings.h"
#include "command_line/changing.h"
#include "command_line/commands/commands.h"
#include "command_line/units.h"

namespace modcache::command_line {
namespace {

class EvictCommand final : public Command {
 public:
  void declare(Arguments& arguments) override {
    arguments.describe(
        {"evict", "[DIR]", "Make a directory smaller: what was used longest ago leaves",
         "Programs that store do so by themselves, by their setting `policy`, when `disk` is\n"
         "reached. Where MODCACHE_POLICY is keep, what was stored last leaves.\n"
         "A segment that some process still reads takes its room until that lets go of it.\n"
         "Programs that store are asked to leave their segments; where one does not within a\n"
         "second, exit status 1 says that the directory is still larger.\n\n"
         "  modcache evict DIR --to 10GB"});
    arguments.words(0, 1, words_);
    arguments.option("--to", "SIZE", "What it may have afterwards, such as 10GB or 512MiB", to_);
  }

  Result<ExitCode> run(Output& output) override {
    if (!to_) return Status::invalid_argument("modcache evict needs --to SIZE, such as --to 10GB");
    auto to_bytes = cache::parse_size_bytes(*to_);
    if (!to_bytes.is_ok()) {
      return Status::invalid_argument("--to is '" + *to_ +
                                      "', but must be a number of bytes such as 1073741824, 512MiB "
                                      "or 10GB, not negative");
    }
    auto path = directory_before(words_, 0);
    if (!path.is_ok()) return path.status();
    auto store = open_to_change(path.value());
    if (!store.is_ok()) return store.status();
    const std::int64_t before = size_bytes_of(path.value());
    auto evicted = store.value()->evict(to_bytes.value());
    if (!evicted.is_ok()) return evicted.status();
    store.value() = nullptr;
    const std::int64_t after = size_bytes_of(path.value());
    Report report = this->report(output);
    report.add("directory", "directory", Cell::text(path.value()));
    report.add("evicted", "entries that left", Cell::count(evicted.value().entries));
    report.add("disk_bytes_before", "size before", Cell::size_bytes(before));
    report.add("disk_bytes", "size now", Cell::size_bytes(after));
    report.finish();
    if (evicted.value().is_hindered) {
      output.say("it is still larger than " +
                 size_text(static_cast<std::int64_t>(to_bytes.value())) +
                 ": a program keeps a segment open to write to; end it, or try again while it "
                 "does not store");
      return ExitCode::kFindings;
    }
    if (static_cast<std::uint64_t>(after) > to_bytes.value()) {
      output.say("it is still larger than " +
                 size_text(static_cast<std::int64_t>(to_bytes.value())) +
                 ": the database and files that are still read take that room");
    }
    return ExitCode::kSuccess;
  }

 private:
  std::vector<std::string> words_;
  std::optional<std::string> to_;
};

}  // namespace

CommandPtr make_evict_command() { return std::make_unique<EvictCommand>(); }

}  // namespace modcache::command_line
