// SPDX-License-Identifier: Apache-2.0
//
// modcache evict: makes a directory smaller, removing what was not used for longest first.
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
    MODCACHE_ASSIGN_OR_RETURN(auto path, directory_before(words_, 0));
    MODCACHE_ASSIGN_OR_RETURN(auto store, open_to_change(path));
    const std::int64_t before = size_bytes_of(path);
    MODCACHE_ASSIGN_OR_RETURN(auto evicted, store->evict(to_bytes.value()));
    store = nullptr;
    const std::int64_t after = size_bytes_of(path);
    Report report = this->report(output, path);
    report.add("evicted", "entries that left", Cell::count(evicted.entries));
    report.add("disk_bytes_before", "size before", Cell::size_bytes(before));
    report.add("disk_bytes", "size now", Cell::size_bytes(after));
    report.finish();
    if (evicted.is_hindered) {
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
  std::optional<std::string> to_;
};

}  // namespace

CommandPtr make_evict_command() { return std::make_unique<EvictCommand>(); }

}  // namespace modcache::command_line
