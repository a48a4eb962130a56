// SPDX-License-Identifier: Apache-2.0
//
// modcache mode: shows or sets, from outside, what the processes that use a directory may do with
// it.
#include "command_line/cache_directory.h"
#include "command_line/commands/commands.h"
#include "fs/posix_file_system.h"
#include "store/control/directory_mode.h"

namespace modcache::command_line {
namespace {

constexpr std::int64_t kPatienceMs = 10'000;

class ModeCommand final : public Command {
 public:
  void declare(Arguments& arguments) override {
    arguments.describe(
        {"mode", "[off|read|on] [DIR]", "Say or set what processes may do with a directory",
         "It stands until it is changed, and running processes see it with their next call.\n"
         "off: every module runs, nothing is read or stored. read: nothing is stored. on: both.\n"
         "What a process or a thread forbids itself stays forbidden.\n\n"
         "  modcache mode off DIR\n  modcache mode DIR"});
    arguments.words(0, 2, words_);
  }

  Result<ExitCode> run(Output& output) override {
    const bool names_mode = !words_.empty() && store::parse_directory_mode(words_[0]).is_ok();
    if (words_.size() == 2 && !names_mode) {
      // The words may be in the wrong order, so the message says the right one.
      return Status::invalid_argument(store::parse_directory_mode(words_[0]).status().message() +
                                      "; the mode comes before the directory");
    }
    auto path = directory_before(words_, names_mode ? 1 : 0);
    if (names_mode && words_.size() == 2) path = directory_or_default(words_[1]);
    if (!path.is_ok()) return path.status();
    MODCACHE_RETURN_IF_ERROR(check_is_cache(path.value()));
    if (names_mode) {
      const auto mode = store::parse_directory_mode(words_[0]).value();
      MODCACHE_RETURN_IF_ERROR(
          store::set_directory_mode(fs::posix_file_system(), path.value(), mode, kPatienceMs));
    }
    MODCACHE_ASSIGN_OR_RETURN(auto mode,
                              store::directory_mode(fs::posix_file_system(), path.value()));
    const std::string_view name = store::directory_mode_name(mode);
    Report report = this->report(output);
    report.add("directory", "", Cell::text(path.value()));
    report.add("mode", "", Cell::text(name));
    report.finish();
    if (!is_json()) output.write(std::string(name) + '\n');
    return ExitCode::kSuccess;
  }
};

}  // namespace

CommandPtr make_mode_command() { return std::make_unique<ModeCommand>(); }

}  // namespace modcache::command_line
