// SPDX-License-Identifier: Apache-2.0
//
// modcache report: writes one page of HTML about a directory.
#include "base/clock.h"
#include "command_line/changing.h"
#include "command_line/commands/commands.h"
#include "command_line/directory_page.h"
#include "fs/posix_file_system.h"
#include "store/control/directory_mode.h"
#include "store/counters/counter_totals.h"

namespace modcache::command_line {
namespace {

constexpr std::string_view kStandardOutput = "-";

Result<PageFacts> page_facts(const std::string& path) {
  MODCACHE_ASSIGN_OR_RETURN(auto directory, CacheDirectory::open(path));
  PageFacts facts;
  facts.path = path;
  facts.is_pack = is_file(path);
  facts.made_at_us = now_us();
  facts.budget_bytes = static_cast<std::int64_t>(options_of(path).disk_budget_bytes);
  MODCACHE_ASSIGN_OR_RETURN(facts.scopes, directory->scopes());
  MODCACHE_ASSIGN_OR_RETURN(facts.files, DiskFiles::list(path));
  if (facts.is_pack) return facts;
  const auto mode = store::directory_mode(fs::posix_file_system(), path);
  if (mode.is_ok()) facts.mode = store::directory_mode_name(mode.value());
  MODCACHE_ASSIGN_OR_RETURN(facts.counters, store::read_counters(fs::posix_file_system(), path));
  return facts;
}

class ReportCommand final : public Command {
 public:
  void declare(Arguments& arguments) override {
    arguments.describe(
        {"report", "[DIR]", "Write a page for a browser: hit rate over time, sizes, scopes",
         "The page is one file, which loads nothing. Only a page of this\n"
         "command, or an empty file, is replaced.\n\n  modcache report DIR -o report.html\n"
         "  modcache report DIR -o - > report.html"});
    arguments.words(0, 1, words_);
    arguments.option("-o,--output", "FILE", "Where to write it; - is standard output", file_);
  }

  Result<ExitCode> run(Output& output) override {
    if (!file_ || file_->empty()) {
      return Status::invalid_argument(
          "report needs -o FILE, such as -o report.html; - is standard output");
    }
    const bool is_to_output = *file_ == kStandardOutput;
    if (is_to_output && is_json()) {
      return Status::invalid_argument("--json tells of a file, and -o - is none: leave out one");
    }
    MODCACHE_ASSIGN_OR_RETURN(auto path, directory_before(words_, 0));
    MODCACHE_ASSIGN_OR_RETURN(const auto facts, page_facts(path));
    const std::string page = directory_page(facts);
    if (is_to_output) {
      output.write(page);
      return ExitCode::kSuccess;
    }
    MODCACHE_RETURN_IF_ERROR(write_whole_file(*file_, page, kPageBeginning));
    Report report = this->report(output, path);
    report.add("file", "page", Cell::text(*file_));
    report.add("file_bytes", "size", Cell::size_bytes(static_cast<std::int64_t>(page.size())));
    report.finish();
    return ExitCode::kSuccess;
  }

 private:
  std::optional<std::string> file_;
};

}  // namespace

CommandPtr make_report_command() { return std::make_unique<ReportCommand>(); }

}  // namespace modcache::command_line
