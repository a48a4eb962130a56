// SPDX-License-Identifier: Apache-2.0
//
// modcache why: shows the differences between the modules behind two scopes.
#include <algorithm>

#include "command_line/cache_directory.h"
#include "command_line/commands/commands.h"
#include "command_line/entry_columns.h"
#include "command_line/terminal_text.h"

namespace modcache::command_line {
namespace {

// True for differences whose values are digests, which mean nothing to people.
bool has_digests(const Difference& difference) {
  return difference.kind == "weight" || difference.kind == "code" ||
         difference.kind == "attribute" || difference.kind == kPackageValues;
}

std::string change_of(const Difference& difference) {
  if (difference.in_a.empty()) return "only in B";
  if (difference.in_b.empty()) return "only in A";
  if (has_digests(difference)) return "differs";
  return difference.in_a + " -> " + difference.in_b;
}

class WhyCommand final : public Command {
 public:
  void declare(Arguments& arguments) override {
    arguments.describe(
        {"why", "[DIR] [SCOPE_A SCOPE_B]",
         "Which weight, code or version differs between two scopes",
         "Without scopes: those that have something on record, which is what a module was when\n"
         "its scope first stored something. A part that begins only one scope stands for it.\n"
         "Exit status 1: a scope is not there, or has nothing on record."});
    arguments.words(0, 3, words_);
  }

  Result<ExitCode> run(Output& output) override {
    const bool lists = words_.size() < 2;
    MODCACHE_ASSIGN_OR_RETURN(auto path, directory_before(words_, lists ? 0 : 2));
    MODCACHE_ASSIGN_OR_RETURN(auto directory, CacheDirectory::open(path));
    MODCACHE_ASSIGN_OR_RETURN(auto scopes, directory->scopes());
    if (lists) return list(output, std::move(scopes));
    return compare(output, scopes);
  }

 private:
  // Lists the scopes in the order in which they were made.
  Result<ExitCode> list(Output& output, std::vector<KnownScope> scopes) const {
    const auto made = [](const KnownScope& s) { return s.manifest ? s.manifest->created_us : 0; };
    std::sort(scopes.begin(), scopes.end(), [&](const auto& a, const auto& b) {
      return made(a) != made(b) ? made(a) < made(b) : comes_before(a.scope, b.scope);
    });
    Report report = this->report(output);
    report.begin_rows("scopes",
                      {{"scope", "SCOPE"},
                       {"namespace", ""},
                       {"class", "CACHED"},
                       {"method", "METHOD"},
                       {"created_at", "MADE"},
                       {"process", "BY PROCESS"},
                       {"torch", "TORCH"},
                       {"entries", "ENTRIES"}},
                      "no scope has anything on record");
    for (const KnownScope& scope : scopes) {
      if (!scope.manifest) continue;
      const Manifest& manifest = *scope.manifest;
      report.add_row({Cell::text(scope.scope), Cell::text(scope.name_space),
                      Cell::text_if_any(manifest.class_name), Cell::text_if_any(manifest.method),
                      Cell::time_us(manifest.created_us), Cell::plain_number(manifest.process),
                      Cell::text_if_any(manifest.torch), Cell::count(scope.totals.entries)});
    }
    report.end_rows();
    report.finish();
    return ExitCode::kSuccess;
  }

  Result<ExitCode> compare(Output& output, const std::vector<KnownScope>& scopes) const {
    const KnownScope* const a = scope_of(output, scopes, words_[words_.size() - 2]);
    const KnownScope* const b = scope_of(output, scopes, words_.back());
    if (a == nullptr || b == nullptr) return ExitCode::kFindings;
    const std::vector<Difference> found = differences(*a->manifest, *b->manifest);
    Report report = this->report(output);
    report.begin_rows("scopes",
                      {{"side", ""},
                       {"scope", "SCOPE"},
                       {"namespace", ""},
                       {"class", "CACHED"},
                       {"method", ""},
                       {"created_at", "MADE"},
                       {"process", "BY PROCESS"},
                       {"torch", "TORCH"},
                       {"python", "PYTHON"},
                       {"entries", "ENTRIES"}},
                      "");
    add_side(report, "A", *a);
    add_side(report, "B", *b);
    report.end_rows();
    report.begin_rows("differences",
                      {{"kind", "KIND"}, {"name", "NAME"}, {"", "CHANGE"}, {"a", ""}, {"b", ""}},
                      "nothing that is on record differs");
    for (const Difference& difference : found) {
      report.add_row({Cell::text(difference.kind), Cell::text_if_any(difference.name),
                      Cell::text(change_of(difference)), Cell::text_if_any(difference.in_a),
                      Cell::text_if_any(difference.in_b)});
    }
    report.end_rows();
    report.finish();
    if (a->manifest->face != b->manifest->face) {
      output.say(
          "one was stored by an eager module and one by TorchScript, so their weights and "
          "code cannot be compared");
    } else if (!a->manifest->tensors || !b->manifest->tensors) {
      output.say("weights are not on record: a scope that the caller named, or too many of them");
    }
    return ExitCode::kSuccess;
  }

  static const KnownScope* scope_of(Output& output, const std::vector<KnownScope>& scopes,
                                    const std::string& given) {
    auto name = scope_named(names_of(scopes), given);
    if (!name.is_ok()) {
      output.say(name.status().message());
      return nullptr;
    }
    const KnownScope* named = nullptr;
    for (const KnownScope& scope : scopes) {
      if (scope.scope == name.value() && (named == nullptr || scope.manifest)) named = &scope;
    }
    if (named != nullptr && named->manifest) return named;
    output.say("scope '" + printable(name.value()) +
               "' has nothing on record: it was filled by `store`, or its manifest was lost");
    return nullptr;
  }

  static void add_side(Report& report, const char* side_name, const KnownScope& scope) {
    const Manifest& manifest = *scope.manifest;
    report.add_row({Cell::text(side_name), Cell::text(scope.scope), Cell::text(scope.name_space),
                    Cell::text_if_any(manifest.class_name), Cell::text_if_any(manifest.method),
                    Cell::time_us(manifest.created_us), Cell::plain_number(manifest.process),
                    Cell::text_if_any(manifest.torch), Cell::text_if_any(manifest.python),
                    Cell::count(scope.totals.entries)});
  }
};

}  // namespace

CommandPtr make_why_command() { return std::make_unique<WhyCommand>(); }

}  // namespace modcache::command_line
