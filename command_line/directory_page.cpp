// SPDX-License-Identifier: Apache-2.0
#include "command_line/directory_page.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <utility>

#include "command_line/html.h"
#include "command_line/lineage.h"
#include "command_line/page_style.h"
#include "command_line/report.h"
#include "command_line/terminal_text.h"
#include "command_line/units.h"

namespace modcache::command_line {
namespace {

constexpr std::size_t kMostScopesShown = 40;
constexpr std::size_t kMostFamiliesShown = 40;
// A chart of fewer days would have no course.
constexpr std::int32_t kLeastPoints = 14;
// A chart with more has weeks, or whatever number of days a point takes then.
constexpr std::int32_t kMostPoints = 92;
constexpr std::size_t kShortScopeColumns = 24;

std::string rate_text(const Counted& counted) {
  return Cell::share(counted.hits(), counted.looked_up()).for_people();
}

// How many of a noun: "1 hit", "1,234 hits".
std::string number_of(std::int64_t count, const char* one, const char* many) {
  return count_text(count) + ' ' + (count == 1 ? one : many);
}

std::string per_cent_of(std::int64_t part, std::int64_t whole) {
  const double share =
      whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0;
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "%.2f%%", std::clamp(share, 0.0, 100.0));
  return text.data();
}

std::string scope_html(const std::string& scope) {
  const std::string shown = shortened(printable(scope), kShortScopeColumns);
  // html_text() of what is printable would escape its backslashes once more.
  return "<code title=\"" + html_text(scope) + "\">" + html_of_printable(shown) + "</code>";
}

std::string tile(const char* label, const std::string& value, const std::string& more = "") {
  return std::string("<div><dt>") + label + "</dt><dd>" + html_text(value) +
         (more.empty() ? "" : "<small class=\"soft\">" + html_text(more) + "</small>") +
         "</dd></div>\n";
}

Totals totals_of(const std::vector<KnownScope>& scopes) {
  Totals sum;
  for (const KnownScope& scope : scopes) {
    sum.entries += scope.totals.entries;
    sum.payload_bytes += scope.totals.payload_bytes;
    sum.record_bytes += scope.totals.record_bytes;
    sum.run_us += scope.totals.run_us;
  }
  return sum;
}

std::string head_html(const PageFacts& facts) {
  return std::string(kPageBeginning) +
         "<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
         "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
         "<meta name=\"referrer\" content=\"no-referrer\">\n"
         "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
         "'unsafe-inline'\">\n<title>modcache: " +
         html_text(facts.path) + "</title>\n<style>" + kPageStyle +
         "</style></head>\n<body><main>\n" + "<header><p class=\"soft\">modcache report</p><h1>" +
         html_text(facts.path) + "</h1><p class=\"soft\">" +
         html_text(local_time_text(facts.made_at_us)) + (facts.is_pack ? " · a pack" : "") +
         (facts.mode.empty() ? "" : " · mode " + html_text(facts.mode)) +
         (facts.counters.live_processes == 0
              ? ""
              : " · " + number_of(static_cast<std::int64_t>(facts.counters.live_processes),
                                  "process counts now", "processes count now")) +
         "</p></header>\n";
}

std::string tiles_html(const PageFacts& facts) {
  const Counted counted = sum_of(facts.counters);
  const Totals totals = totals_of(facts.scopes);
  std::string text = "<dl class=\"tiles\">\n";
  if (facts.is_pack) {
    text += tile("Hit rate", "-", "a pack counts nothing");
  } else if (counted.is_zero()) {
    text += tile("Hit rate", "-", "none counted yet");
  } else {
    text += tile("Hit rate", rate_text(counted),
                 "of " + number_of(counted.looked_up(), "look-up", "look-ups"));
    text += tile("Time saved", duration_text(counted.saved_us()),
                 facts.counters.since_us > 0
                     ? "since " + local_time_text(facts.counters.since_us).substr(0, 10)
                     : "");
    text += tile("Hits", count_text(counted.hits()),
                 count_text(counted.of("hits_memory")) + " in memory");
    text +=
        tile("Misses", count_text(counted.misses()), "ran " + duration_text(counted.of("run_us")));
  }
  text +=
      tile("Entries", count_text(totals.entries),
           "in " + number_of(static_cast<std::int64_t>(facts.scopes.size()), "scope", "scopes"));
  text += tile("Size on disk", size_text(facts.files.size_bytes()),
               facts.is_pack ? "" : "of " + size_text(facts.budget_bytes));
  return text + "</dl>\n";
}

// One point of the charts: a day, or a few.
struct Span {
  std::int32_t first = 0;
  std::int32_t last = 0;
  Counted counted;

  std::string label() const {
    return first == last ? day_text(first) : day_text(first) + " to " + day_text(last);
  }
};

// Every day has a place, also those on which nothing was counted.
std::vector<Span> spans_of(const store::CounterTotals& totals) {
  const auto days = sums_by_day(totals);
  std::vector<Span> spans;
  if (days.empty()) return spans;
  const std::int64_t end = std::int64_t{days.rbegin()->first} + 1;
  const std::int64_t first = std::min<std::int64_t>(days.begin()->first, end - kLeastPoints);
  const std::int64_t count = end - first;
  const std::int64_t size = (count + kMostPoints - 1) / kMostPoints;
  for (std::int64_t begin = first; begin < end; begin += size) {
    const std::int64_t last = std::min(begin + size, end) - 1;
    spans.push_back({static_cast<std::int32_t>(begin), static_cast<std::int32_t>(last), {}});
  }
  for (const store::CountedDay& day : totals.days) {
    spans[static_cast<std::size_t>((day.day - first) / size)].counted.add(day.counts);
  }
  return spans;
}

std::string days_table(const std::vector<Span>& spans) {
  std::string text =
      "<details><summary>The numbers</summary><div class=\"wide\" tabindex=\"0\"><table>"
      "<thead><tr><th scope=\"col\">Day (UTC)</th><th scope=\"col\">Hit rate</th>"
      "<th scope=\"col\">Hits</th><th scope=\"col\">Misses</th><th scope=\"col\">Time saved</th>"
      "<th scope=\"col\">Bypassed</th><th scope=\"col\">Stored</th></tr></thead><tbody>\n";
  for (const Span& span : spans) {
    const Counted& counted = span.counted;
    if (counted.is_zero()) continue;
    text += "<tr><td>" + span.label() + "</td><td>" + rate_text(counted) + "</td><td>" +
            count_text(counted.hits()) + "</td><td>" + count_text(counted.misses()) + "</td><td>" +
            duration_text(counted.saved_us()) + "</td><td>" + count_text(counted.bypassed()) +
            "</td><td>" + count_text(counted.of("stored")) + "</td></tr>\n";
  }
  return text + "</tbody></table></div></details>";
}

std::string time_html(const PageFacts& facts) {
  const std::vector<Span> spans = spans_of(facts.counters);
  if (spans.empty()) return "";
  std::vector<ChartPoint> rates;
  std::vector<ChartPoint> times;
  std::int64_t most_us = 1;
  for (const Span& span : spans) {
    const Counted& counted = span.counted;
    const bool is_known = counted.looked_up() > 0;
    rates.push_back(
        {day_text(span.first),
         span.label() + ": " +
             (is_known ? rate_text(counted) + " of " +
                             number_of(counted.looked_up(), "look-up", "look-ups")
                       : "no look-ups"),
         is_known ? static_cast<double>(counted.hits()) / static_cast<double>(counted.looked_up())
                  : 0,
         is_known});
    times.push_back({day_text(span.first),
                     span.label() + ": " + duration_text(counted.saved_us()) + " saved",
                     static_cast<double>(counted.saved_us()), true});
    most_us = std::max(most_us, counted.saved_us());
  }
  const Counted all = sum_of(facts.counters);
  return "<section><h2>Over time</h2><div class=\"charts\">\n" +
         chart_html("Hit rate", "Hit rate by day, " + rate_text(all) + " in total",
                    ChartForm::kLine, rates, {1, {"0 %", "25 %", "50 %", "75 %", "100 %"}}) +
         chart_html("Time saved",
                    "Time saved by day, " + duration_text(all.saved_us()) + " in total",
                    ChartForm::kBars, times, duration_axis(most_us)) +
         "</div>" + days_table(spans) + "</section>\n";
}

// A fact that stays on one line.
std::string fact_html(const std::string& fact) { return "<span>" + html_text(fact) + "</span>"; }

std::string class_of(const KnownScope& scope) {
  return scope.manifest && !scope.manifest->class_name.empty() ? scope.manifest->class_name : "";
}

std::string size_item(const KnownScope& scope, const Counted& counted, std::int64_t largest) {
  const Totals& totals = scope.totals;
  const std::string name = class_of(scope);
  std::string facts = fact_html(number_of(totals.entries, "entry", "entries"));
  if (counted.looked_up() > 0) {
    facts += " · " + fact_html(rate_text(counted) + " hits") + " · " +
             fact_html(duration_text(counted.saved_us()) + " saved");
  }
  return "<li><div class=\"name\"><span>" +
         (name.empty() ? "" : "<b>" + html_text(name) + "</b> ") + scope_html(scope.scope) +
         (scope.name_space.empty() ? ""
                                   : " <small>in " + html_text(scope.name_space) + "</small>") +
         "</span><span>" + size_text(totals.record_bytes) +
         "</span></div><div class=\"bar\" aria-hidden=\"true\"><i style=\"width:" +
         per_cent_of(totals.record_bytes, largest) + "\"></i></div><small>" + facts +
         "</small></li>\n";
}

std::string sizes_html(const PageFacts& facts) {
  std::vector<const KnownScope*> scopes;
  for (const KnownScope& scope : facts.scopes) {
    if (scope.totals.entries > 0) scopes.push_back(&scope);
  }
  std::sort(scopes.begin(), scopes.end(), [](const KnownScope* a, const KnownScope* b) {
    const auto rank = [](const KnownScope* s) {
      return std::pair(-s->totals.record_bytes, s->scope);
    };
    return rank(a) < rank(b);
  });
  std::string text = "<section><h2>Size by scope</h2>\n";
  if (scopes.empty()) return text + "<p class=\"soft\">There are no entries.</p></section>\n";
  const auto counted = sums_by_scope(facts.counters);
  text += "<ul class=\"sizes\">\n";
  for (std::size_t i = 0; i < scopes.size() && i < kMostScopesShown; ++i) {
    const auto found = counted.find(scopes[i]->scope.substr(0, store::kMostScopeBytes));
    text += size_item(*scopes[i], found == counted.end() ? Counted() : found->second,
                      scopes.front()->totals.record_bytes);
  }
  text += "</ul>";
  if (scopes.size() > kMostScopesShown) {
    text += "<p class=\"soft\">and " +
            number_of(static_cast<std::int64_t>(scopes.size() - kMostScopesShown), "smaller scope",
                      "smaller scopes") +
            "</p>";
  }
  return text + "</section>\n";
}

std::string budget_html(const PageFacts& facts) {
  if (facts.is_pack) return "";
  using Kind = DiskFile::Kind;
  const DiskFiles& files = facts.files;
  const std::int64_t used = files.size_bytes();
  const std::int64_t segments =
      files.total(Kind::kSegment).size_bytes + files.total(Kind::kRetiredSegment).size_bytes;
  const std::int64_t values = std::min(segments, totals_of(facts.scopes).record_bytes);
  const std::int64_t index =
      files.total(Kind::kDatabase).size_bytes + files.total(Kind::kSharedIndex).size_bytes;
  const std::int64_t free = std::max<std::int64_t>(0, facts.budget_bytes - used);
  struct Part {
    const char* style;
    const char* label;
    std::int64_t size_bytes;
  };
  const std::array<Part, 5> parts{{{"values", "entries", values},
                                   {"dead", "of no entry any more", segments - values},
                                   {"index", "database and index", index},
                                   {"other", "notes and others", used - segments - index},
                                   {"free", "left of the budget", free}}};
  std::string bar;
  std::string key;
  for (const Part& part : parts) {
    if (part.size_bytes > 0) {
      bar += std::string("<i class=\"") + part.style +
             "\" style=\"width:" + per_cent_of(part.size_bytes, used + free) + "\"></i>";
    }
    key += std::string("<li><i class=\"") + part.style + "\"></i>" + part.label + " " +
           size_text(part.size_bytes) + "</li>\n";
  }
  return "<section><h2>Budget</h2><p>" + size_text(used) + " of " + size_text(facts.budget_bytes) +
         (used > facts.budget_bytes ? ", which is more than it allows" : "") +
         "</p><div class=\"bar budget\" aria-hidden=\"true\">" + bar +
         "</div><ul class=\"key\">\n" + key +
         "</ul><p class=\"soft\"><small>The budget is that of MODCACHE_DISK, or the default, "
         "where this page was made; programs may set another.</small></p></section>\n";
}

using Entries = std::map<std::pair<std::string, std::string>, std::int64_t>;

std::string descendant_html(const Family& family, std::size_t i, std::size_t number,
                            const Entries& entries) {
  const auto anchor = [number](std::size_t member) {
    return "s" + std::to_string(number) + "-" + std::to_string(member);
  };
  const Descendant& one = family.members[i];
  const Manifest& manifest = one.manifest;
  const auto found = entries.find({manifest.name_space, manifest.scope});
  const std::int64_t count = found == entries.end() ? 0 : found->second;
  std::string text = "<li id=\"" + anchor(i) + "\"><p>" + scope_html(manifest.scope) + " <small>" +
                     fact_html(local_time_text(manifest.created_us)) + " · " +
                     fact_html(number_of(count, "entry", "entries")) + "</small></p>";
  if (one.parent == i) {
    text += "<p class=\"soft\">the first on record</p>";
  } else {
    const std::string changes = changes_text(one.changes);
    text += "<p class=\"soft\">from <a href=\"#" + anchor(one.parent) + "\">" +
            scope_html(family.members[one.parent].manifest.scope) +
            "</a>: " + (changes.empty() ? "nothing on record differs" : html_text(changes)) +
            "</p>";
  }
  return text + "</li>\n";
}

std::string family_html(const Family& family, std::size_t number, const Entries& entries) {
  const Manifest& last = family.members.back().manifest;
  std::string text = "<h3>" + html_text(last.class_name.empty() ? "unnamed" : last.class_name) +
                     (last.method.empty() || last.method == "forward"
                          ? ""
                          : " <span class=\"soft\">." + html_text(last.method) + "</span>") +
                     (last.name_space.empty()
                          ? ""
                          : " <span class=\"soft\">in " + html_text(last.name_space) + "</span>") +
                     "</h3><ol class=\"came\">\n";
  for (std::size_t i = 0; i < family.members.size(); ++i) {
    text += descendant_html(family, i, number, entries);
  }
  text += "</ol>";
  if (family.left_out > 0) {
    text +=
        "<p class=\"soft\">" +
        number_of(static_cast<std::int64_t>(family.left_out), "older one is", "older ones are") +
        " left out</p>";
  }
  return text;
}

std::string lineage_html(const PageFacts& facts) {
  std::vector<Manifest> manifests;
  Entries entries;
  for (const KnownScope& scope : facts.scopes) {
    entries[{scope.name_space, scope.scope}] = scope.totals.entries;
    if (scope.manifest) manifests.push_back(*scope.manifest);
  }
  const std::vector<Family> families = families_of(std::move(manifests));
  std::string text = "<section><h2>Which scopes came from which</h2>\n";
  if (families.empty()) {
    return text + "<p class=\"soft\">No scope has anything on record.</p></section>\n";
  }
  for (std::size_t i = 0; i < families.size() && i < kMostFamiliesShown; ++i) {
    text += family_html(families[i], i, entries);
  }
  if (families.size() > kMostFamiliesShown) {
    text += "<p class=\"soft\">and " +
            number_of(static_cast<std::int64_t>(families.size() - kMostFamiliesShown),
                      "class or function", "classes and functions") +
            " without newer scopes</p>";
  }
  return text + "</section>\n";
}

}  // namespace

std::string directory_page(const PageFacts& facts) {
  return head_html(facts) + tiles_html(facts) + time_html(facts) + sizes_html(facts) +
         budget_html(facts) + lineage_html(facts) +
         "<footer>Made by modcache " MODCACHE_VERSION
         ". This page has no scripts and loads nothing.</footer>\n</main></body></html>\n";
}

}  // namespace modcache::command_line
