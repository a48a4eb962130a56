// SPDX-License-Identifier: Apache-2.0
#include "command_line/directory_page.h"

#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/random.h"
#include "command_line/counted.h"
#include "command_line/lineage.h"
#include "command_line/page_template.h"
#include "command_line/terminal_text.h"

namespace modcache::command_line {
namespace {

using Json = nlohmann::json;

Json counted_json(const Counted& counted) {
  return {{"hits", counted.hits()},         {"hits_memory", counted.of("hits_memory")},
          {"misses", counted.misses()},     {"bypassed", counted.bypassed()},
          {"stored", counted.of("stored")}, {"run_us", counted.of("run_us")},
          {"saved_us", counted.saved_us()}};
}

Json days_json(const store::CounterTotals& totals) {
  Json days = Json::array();
  for (const auto& [day, counted] : sums_by_day(totals)) {
    if (counted.is_zero()) continue;
    days.push_back({{"day", day}, {"counted", counted_json(counted)}});
  }
  return days;
}

Json scopes_json(const PageFacts& facts) {
  const auto sums = sums_by_scope(facts.counters);
  Json scopes = Json::array();
  for (const KnownScope& scope : facts.scopes) {
    Json one{{"scope", printable(scope.scope)},
             {"namespace", printable(scope.name_space)},
             {"class", scope.manifest ? printable(scope.manifest->class_name) : ""},
             {"entries", scope.totals.entries},
             {"record_bytes", scope.totals.record_bytes}};
    const auto sum = sums.find(scope.scope.substr(0, store::kMostScopeBytes));
    if (sum != sums.end()) one["counted"] = counted_json(sum->second);
    scopes.push_back(std::move(one));
  }
  return scopes;
}

Json files_json(const DiskFiles& files) {
  using Kind = DiskFile::Kind;
  const auto size = [&](Kind kind) { return files.total(kind).size_bytes; };
  return {{"used_bytes", files.size_bytes()},
          {"segment_bytes", size(Kind::kSegment) + size(Kind::kRetiredSegment)},
          {"index_bytes", size(Kind::kDatabase) + size(Kind::kSharedIndex)}};
}

Json families_json(const std::vector<KnownScope>& scopes) {
  std::vector<Manifest> manifests;
  for (const KnownScope& scope : scopes) {
    if (scope.manifest) manifests.push_back(*scope.manifest);
  }
  Json families = Json::array();
  for (const Family& family : families_of(std::move(manifests))) {
    const Manifest& last = family.members.back().manifest;
    Json members = Json::array();
    for (const Descendant& one : family.members) {
      members.push_back({{"scope", printable(one.manifest.scope)},
                         {"created_us", one.manifest.created_us},
                         {"parent", one.parent},
                         {"changes", printable(changes_text(one.changes))}});
    }
    families.push_back({{"class", printable(last.class_name)},
                        {"method", printable(last.method)},
                        {"namespace", printable(last.name_space)},
                        {"left_out", family.left_out},
                        {"members", std::move(members)}});
  }
  return families;
}

// No "<" is left in it, so it cannot end the element that it stands in.
std::string data_json(const PageFacts& facts) {
  const Json data{{"version", MODCACHE_VERSION},
                  {"path", printable(facts.path)},
                  {"mode", facts.mode},
                  {"is_pack", facts.is_pack},
                  {"made_at_us", facts.made_at_us},
                  {"budget_bytes", facts.budget_bytes},
                  {"processes", facts.counters.live_processes},
                  {"since_us", facts.counters.since_us},
                  {"days", days_json(facts.counters)},
                  {"scopes", scopes_json(facts)},
                  {"files", files_json(facts.files)},
                  {"families", families_json(facts.scopes)}};
  std::string text;
  for (const char c : data.dump(-1, ' ', false, Json::error_handler_t::replace)) {
    c == '<' ? text += "\\u003c" : text += c;
  }
  return text;
}

}  // namespace

std::string directory_page(const PageFacts& facts) {
  // The script runs by a number that names in the data cannot know.
  const std::map<std::string_view, std::string> parts{{"nonce", std::to_string(random_number())},
                                                      {"style", std::string(kPageStyle)},
                                                      {"script", std::string(kPageScript)},
                                                      {"data", data_json(facts)}};
  std::string page;
  std::string_view rest = kPageHtml;
  for (std::size_t at; (at = rest.find("{{")) != rest.npos;) {
    const std::size_t end = rest.find("}}", at);
    page += rest.substr(0, at);
    page += parts.at(rest.substr(at + 2, end - at - 2));
    rest.remove_prefix(end + 2);
  }
  return page += rest;
}

}  // namespace modcache::command_line
