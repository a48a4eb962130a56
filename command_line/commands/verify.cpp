// SPDX-License-Identifier: Apache-2.0
//
// modcache verify: reads everything in a directory, and with --fix repairs what can be repaired.
#include "store/verify/verify.h"

#include "command_line/cache_directory.h"
#include "command_line/commands/commands.h"
#include "command_line/progress.h"
#include "command_line/units.h"
#include "command_line/value_text.h"
#include "fs/posix_file_system.h"
#include "store/pack/pack_verify.h"

namespace modcache::command_line {
namespace {

constexpr std::size_t kMostShown = 1000;

// Checks what only the rooms above the store know: that the value can be rebuilt.
Status check_value(const store::VerifiedEntry& entry) {
  return describe_value(entry.header).status();
}

void report_counts(Report& report, const store::Verification& found) {
  report.add("entries", "entries", Cell::count(found.entries));
  report.add("whole_entries", "  whole", Cell::count(found.whole_entries));
  report.add("segments", "segments", Cell::count(found.segments));
  report.add("notes", "notes", Cell::count(found.notes));
  report.add("unnamed_records", "", Cell::count(found.unnamed_records));
  report.add("bytes_read", "read", Cell::size_bytes(static_cast<std::int64_t>(found.bytes_read)));
  report.add("damage", "damage", Cell::count(found.damage));
}

void report_findings(Report& report, std::string_view name, const store::Verification& found,
                     std::string_view if_none) {
  report.begin_rows(name,
                    {{"kind", "FINDING"},
                     {"is_damage", "DAMAGE"},
                     {"what", "WHAT", true},
                     {"scope", "SCOPE"},
                     {"key", "KEY"},
                     {"file", "FILE"},
                     {"offset", ""}},
                    if_none);
  for (const store::Finding& finding : found.findings) {
    const bool is_goes_on = report.add_row(
        {Cell::text(store::finding_name(finding.kind)), Cell::yes_no(finding.is_damage),
         Cell::text(finding.what), Cell::text(finding.scope), Cell::text(finding.key),
         Cell::text(finding.file), Cell::plain_number(static_cast<std::int64_t>(finding.offset))});
    if (!is_goes_on) break;
  }
  report.end_rows();
}

// The result for a directory of which nothing can be read.
store::Verification broken_as_a_whole(const Status& status) {
  store::Finding finding;
  finding.kind = store::Finding::Kind::kDatabaseBroken;
  finding.what = status.message();
  store::Verification found;
  found.counts[finding.kind] = 1;
  found.damage = 1;
  found.findings.push_back(std::move(finding));
  return found;
}

class VerifyCommand final : public Command {
 public:
  void declare(Arguments& arguments) override {
    arguments.describe(
        {"verify", "[DIR]", "Read everything and say what is damaged",
         "Others may use the directory meanwhile. Without --fix no byte changes.\n"
         "With --fix: entries that are broken go (they are computed again), a broken database is\n"
         "made anew from the segments.\n"
         "Exit status 1: damage was found, also where it was repaired."});
    arguments.words(0, 1, words_);
    arguments.flag("--fix", "Repair what can be repaired, drop what is broken", fixes_);
  }

  Result<ExitCode> run(Output& output) override {
    MODCACHE_ASSIGN_OR_RETURN(auto path, directory_before(words_, 0));
    const bool is_pack = is_file(path);
    if (!is_pack || fixes_) MODCACHE_RETURN_IF_ERROR(check_is_cache(path));
    Progress progress(output);
    store::VerifyOptions options;
    options.directory = path;
    options.check_value = check_value;
    options.most_findings = kMostShown;
    options.on_progress = [&](const store::VerifyProgress& so_far) {
      progress.show(so_far.entries_done, so_far.entries, so_far.bytes_done);
    };
    return fixes_ ? repair(output, path, options) : verify(output, path, options);
  }

 private:
  Result<ExitCode> verify(Output& output, const std::string& path,
                          const store::VerifyOptions& options) const {
    auto verified = is_file(path) ? store::verify_pack(fs::posix_file_system(), options)
                                  : store::verify_directory(fs::posix_file_system(), options);
    if (verified.status().code() == StatusCode::kInvalidArgument) return check_is_cache(path);
    const bool is_broken = verified.status().code() == StatusCode::kCorruption;
    if (is_broken) verified = broken_as_a_whole(verified.status());
    if (!verified.is_ok()) return verified.status();
    const store::Verification& found = verified.value();
    output.end_progress();
    Report report = this->report(output, path);
    report_counts(report, found);
    report_findings(report, "findings", found, "no damage");
    report.finish();
    say_what_is_left_out(output, found);
    return found.is_clean() ? ExitCode::kSuccess : ExitCode::kFindings;
  }

  Result<ExitCode> repair(Output& output, const std::string& path,
                          const store::VerifyOptions& options) const {
    MODCACHE_ASSIGN_OR_RETURN(const auto repairs,
                              store::repair_directory(fs::posix_file_system(), options));
    output.end_progress();
    Report report = this->report(output, path);
    report_counts(report, repairs.before);
    report.add("dropped", "entries dropped", Cell::count(repairs.dropped));
    report.add("recovered", "entries found again", Cell::count(repairs.recovered));
    report.add("remaining_damage", "damage that is left", Cell::count(repairs.after.damage));
    report_findings(report, "findings", repairs.before, "no damage");
    report.begin_rows("steps", {{"step", "DONE", true}}, "nothing was to be done");
    for (const std::string& step : repairs.steps) report.add_row({Cell::text(step)});
    report.end_rows();
    if (!repairs.after.is_clean()) {
      report_findings(report, "remaining_findings", repairs.after, "");
    }
    report.finish();
    say_what_is_left_out(output, repairs.before);
    const bool was_clean = repairs.before.is_clean() && repairs.after.is_clean();
    return was_clean ? ExitCode::kSuccess : ExitCode::kFindings;
  }

  static void say_what_is_left_out(Output& output, const store::Verification& found) {
    std::int64_t all = 0;
    for (const auto& [kind, count] : found.counts) all += count;
    const auto shown = static_cast<std::int64_t>(found.findings.size());
    if (all > shown) output.say(count_text(all - shown) + " more findings are not shown");
  }

  bool fixes_ = false;
};

}  // namespace

CommandPtr make_verify_command() { return std::make_unique<VerifyCommand>(); }

}  // namespace modcache::command_line
