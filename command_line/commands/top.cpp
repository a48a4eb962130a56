// SPDX-License-Identifier: Apache-2.0
//
// modcache top: shows what happens in a directory while it happens.
#include <charconv>
#include <cmath>

#include "base/clock.h"
#include "command_line/activity.h"
#include "command_line/commands/commands.h"
#include "command_line/live_terminal.h"
#include "command_line/top_screen.h"

namespace modcache::command_line {
namespace {

constexpr std::int64_t kUsualIntervalMs = 1000;
constexpr double kLeastSeconds = 0.1;
constexpr double kMostSeconds = 3600;

Result<std::int64_t> parse_interval_ms(const std::optional<std::string>& text) {
  if (!text) return kUsualIntervalMs;
  double seconds = 0;
  const char* const end = text->data() + text->size();
  const auto [rest, error] = std::from_chars(text->data(), end, seconds, std::chars_format::fixed);
  if (error == std::errc() && rest == end && seconds >= kLeastSeconds && seconds <= kMostSeconds) {
    return std::llround(seconds * 1000);
  }
  return Status::invalid_argument("--interval is '" + *text +
                                  "', but must be a number of seconds from 0.1 to 3600");
}

void add_counted(Report& report, const Counted& counted, const std::string& when) {
  report.add("hit_rate", "hit rate" + when, Cell::share(counted.hits(), counted.looked_up()));
  report.add("hits", "hits" + when, Cell::count(counted.hits()));
  report.add("misses", "misses" + when, Cell::count(counted.misses()));
  report.add("bypassed", counted.bypassed() > 0 ? "bypassed" + when : "",
             Cell::count(counted.bypassed()));
  report.add("saved_us", "time saved" + when, Cell::duration_us(counted.saved_us()));
}

void add_scopes(Report& report, const Activity& activity) {
  report.begin_rows("scopes",
                    {{"scope", "SCOPE"},
                     {"class", "CACHED"},
                     {"hit_rate", "HIT RATE"},
                     {"hits", "HITS"},
                     {"misses", "MISSES"},
                     {"saved_us", "SAVED"},
                     {"total_hit_rate", "IN TOTAL"},
                     {"total_saved_us", "SAVED"}},
                    "");
  for (const ScopeActivity& one : activity.scopes) {
    report.add_row({Cell::text_if_any(one.scope), Cell::text_if_any(one.class_name),
                    Cell::share(one.now.hits(), one.now.looked_up()), Cell::count(one.now.hits()),
                    Cell::count(one.now.misses()), Cell::duration_us(one.now.saved_us()),
                    Cell::share(one.total.hits(), one.total.looked_up()),
                    Cell::duration_us(one.total.saved_us())});
  }
  report.end_rows();
}

class TopCommand final : public Command {
 public:
  void declare(Arguments& arguments) override {
    arguments.describe({"top", "[DIR]", "What happens in a directory, live",
                        "In a terminal the screen is drawn anew every second until q or Ctrl-C is "
                        "pressed;\nelsewhere each second is a line. With --once or --json: what "
                        "happened in one second.\n\n  modcache top DIR --interval 5"});
    arguments.words(0, 1, words_);
    arguments.option("--interval", "SECONDS", "The time between two looks; by default 1",
                     interval_);
    arguments.flag("--once", "Tell of one interval and leave", is_once_);
  }

  Result<ExitCode> run(Output& output) override {
    MODCACHE_ASSIGN_OR_RETURN(interval_ms_, parse_interval_ms(interval_));
    MODCACHE_ASSIGN_OR_RETURN(auto path, directory_before(words_, 0));
    ActivityWatch watch(path);
    MODCACHE_ASSIGN_OR_RETURN(auto activity, watch.look());
    if (is_once_ || is_json()) return once(output, watch);
    if (LiveTerminal::is_possible(output)) return draw(output, watch, std::move(activity));
    return write_lines(output, watch);
  }

 private:
  Result<ExitCode> draw(Output& output, ActivityWatch& watch, Activity activity) const {
    LiveTerminal terminal(output);
    std::int64_t next_ms = steady_now_ms() + interval_ms_;
    while (true) {
      const auto size = terminal.size();
      terminal.draw(top_screen(activity, size.columns, size.rows));
      const auto event = terminal.wait_until(next_ms);
      if (event == LiveTerminal::Event::kQuit) return ExitCode::kSuccess;
      if (event != LiveTerminal::Event::kTimeout) continue;
      MODCACHE_ASSIGN_OR_RETURN(activity, watch.look());
      next_ms = std::max(next_ms, steady_now_ms()) + interval_ms_;
    }
  }

  Result<ExitCode> write_lines(Output& output, ActivityWatch& watch) const {
    output.write(top_line_title() + '\n');
    output.flush();
    for (std::int64_t next_ms = steady_now_ms() + interval_ms_; !wait_for_signal_until(next_ms);
         next_ms += interval_ms_) {
      MODCACHE_ASSIGN_OR_RETURN(const auto activity, watch.look());
      output.write(top_line(activity, now_us()) + '\n');
      output.flush();
      if (output.is_closed()) break;
    }
    return ExitCode::kSuccess;
  }

  Result<ExitCode> once(Output& output, ActivityWatch& watch) const {
    wait_for_signal_until(steady_now_ms() + interval_ms_);
    MODCACHE_ASSIGN_OR_RETURN(const auto activity, watch.look());
    Report report = this->report(output, activity.path);
    report.add("mode", "mode", Cell::text_if_any(activity.mode));
    report.add("processes", "processes",
               Cell::count(static_cast<std::int64_t>(activity.processes)));
    report.add("disk_bytes", "size on disk", Cell::size_bytes(activity.disk_bytes));
    report.add("budget_bytes", "budget", Cell::size_bytes(activity.budget_bytes));
    report.add("interval_us", "interval", Cell::duration_us(std::llround(activity.seconds * 1e6)));
    report.begin_group("now");
    add_counted(report, activity.now, " now");
    report.end_group();
    report.begin_group("total");
    add_counted(report, activity.total, " in total");
    report.add("since_at", activity.since_us > 0 ? "counted since" : "",
               Cell::time_us(activity.since_us));
    report.end_group();
    add_scopes(report, activity);
    report.finish();
    if (!activity.failure.empty()) return Status::io_error(activity.failure);
    return ExitCode::kSuccess;
  }

  std::optional<std::string> interval_;
  bool is_once_ = false;
  std::int64_t interval_ms_ = kUsualIntervalMs;
};

}  // namespace

CommandPtr make_top_command() { return std::make_unique<TopCommand>(); }

}  // namespace modcache::command_line
