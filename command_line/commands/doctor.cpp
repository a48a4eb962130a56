// SPDX-License-Identifier: Apache-2.0
//
// modcache doctor: finds what will cause trouble in a directory and on its machine.
#include "base/clock.h"
#include "command_line/cache_directory.h"
#include "command_line/commands/commands.h"
#include "command_line/diagnosis.h"

namespace modcache::command_line {
namespace {

const char* state_name(Finding::State state) {
  switch (state) {
    case Finding::State::kOk: return "ok";
    case Finding::State::kNote: return "note";
    case Finding::State::kProblem: break;
  }
  return "problem";
}

// Checks that the entries can be read, and finds out when the last one was stored.
Finding check_contents(const std::string& path, std::int64_t& last_stored_at_us) {
  auto directory = CacheDirectory::open(path);
  if (!directory.is_ok()) {
    return {Finding::State::kProblem, "contents", directory.status().message(), ""};
  }
  Totals totals;
  for (const KnownContext& context : directory.value()->contexts()) totals.add(context.listed);
  last_stored_at_us = totals.last_stored_at_us;
  return {Finding::State::kOk, "contents",
          std::to_string(totals.entries) + " entries (modcache verify checks their bytes)", ""};
}

class DoctorCommand final : public Command {
 public:
  void declare(Arguments& arguments) override {
    arguments.describe(
        {"doctor", "[DIR]", "What about a directory or this machine makes trouble",
         "Looks at the file system, permissions, free space against the budget\n"
         "(MODCACHE_DISK), versions, the clock, leftover files, processes, limits, whether\n"
         "the server of MODCACHE_REMOTE answers, and for which torch and Python modcache is\n"
         "installed.\n"
         "Changes nothing. Exit status 1: there is a problem."});
    arguments.words(0, 1, words_);
  }

  Result<ExitCode> run(Output& output) override {
    MODCACHE_ASSIGN_OR_RETURN(auto path, directory_before(words_, 0));
    MODCACHE_RETURN_IF_ERROR(check_is_cache(path));
    MODCACHE_ASSIGN_OR_RETURN(auto files, DiskFiles::list(path));
    const std::vector<Finding> findings = look_at(path, files);
    Report report = this->report(output, path);
    report.begin_rows(
        "findings",
        {{"check", "CHECK"}, {"state", "STATE"}, {"found", "FOUND", true}, {"cure", "CURE", true}},
        "");
    bool has_problem = false;
    for (const Finding& finding : findings) {
      has_problem = has_problem || finding.state == Finding::State::kProblem;
      report.add_row({Cell::text(finding.check), Cell::text(state_name(finding.state)),
                      Cell::text(finding.found), Cell::text_if_any(finding.cure)});
    }
    report.end_rows();
    report.finish();
    return has_problem ? ExitCode::kFindings : ExitCode::kSuccess;
  }

 private:
  static std::vector<Finding> look_at(const std::string& path, const DiskFiles& files) {
    std::int64_t budget_bytes = 0;
    std::int64_t last_stored_at_us = 0;
    const Finding settings = check_settings(budget_bytes);
    const Finding contents = check_contents(path, last_stored_at_us);
    return {check_file_system(path),
            check_permissions(path, files),
            check_kinds(path),
            check_free_space(path, budget_bytes, files.size_bytes()),
            check_database(path),
            contents,
            check_clock(files, last_stored_at_us, now_us()),
            check_leftovers(files, now_us()),
            check_processes(path),
            check_limits(),
            settings,
            check_server(),
            check_installation()};
  }
};

}  // namespace

CommandPtr make_doctor_command() { return std::make_unique<DoctorCommand>(); }

}  // namespace modcache::command_line
