// SPDX-License-Identifier: Apache-2.0
#include "command_line/arguments.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <utility>

#include "cache/home_directory.h"

namespace modcache::command_line {
namespace {

// CLI11's formatter, with the command's own usage line.
class HelpFormatter : public CLI::Formatter {
 public:
  explicit HelpFormatter(std::string usage) : usage_(std::move(usage)) { column_width(28); }
  std::string make_usage(const CLI::App*, std::string) const override { return usage_; }
  std::string make_positionals(const CLI::App*) const override { return ""; }
  std::string make_footer(const CLI::App* app) const override {
    return app->get_footer().empty() ? "" : "\n" + app->get_footer() + "\n";
  }

 private:
  const std::string usage_;
};

}  // namespace

void Arguments::describe(Description description) {
  description_ = std::move(description);
  application_.name(description_.name);
  application_.description(description_.summary);
  application_.footer(description_.details);
  application_.formatter(std::make_shared<HelpFormatter>(
      "Usage: modcache " + description_.name + ' ' + description_.words + " [OPTIONS]\n"));
}

// Declares one option of CLI11 for each word: an option that takes several words would split
// "[a,b]".
void Arguments::words(std::size_t least, std::size_t most, std::vector<std::string>& target) {
  least_words_ = least;
  words_ = &target;
  for (std::size_t i = 0; i < most; ++i) {
    application_.add_option("word" + std::to_string(i), [&target](const CLI::results_t& results) {
      target.push_back(results.front());
      return true;
    });
  }
}

void Arguments::option(const std::string& name, const std::string& value, const std::string& help,
                       std::optional<std::string>& target) {
  application_
      .add_option(
          name,
          [&target](const CLI::results_t& results) {
            target = results.front();
            return true;
          },
          help)
      ->type_name(value)
      ->expected(1);
}

void Arguments::flag(const std::string& name, const std::string& help, bool& target) {
  application_.add_flag(name, target, help);
}

Status Arguments::check() const {
  const std::size_t given = words_ == nullptr ? 0 : words_->size();
  if (given >= least_words_) return Status::ok();
  return Status::invalid_argument("modcache " + description_.name + " takes " + description_.words +
                                  ", and got " + (given == 0 ? "nothing" : "too little"));
}

Result<std::string> directory_or_default(const std::optional<std::string>& given) {
  std::string directory = given.value_or("");
  if (!given) {
    const char* const set = std::getenv("MODCACHE_DIR");
    MODCACHE_ASSIGN_OR_RETURN(directory, cache::expand_home(set == nullptr ? "" : set));
  }
  if (directory.empty()) {
    return Status::invalid_argument(
        given
            ? "the directory's name is empty"
            : "no directory was given, and MODCACHE_DIR is not set; DIR is what the setting `dir` "
              "of the programs that use the cache says (by default ~/.cache/modcache)");
  }
  std::error_code error;
  const auto absolute = std::filesystem::absolute(directory, error).lexically_normal();
  std::string path = error ? directory : absolute.string();
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

Result<std::string> directory_before(const std::vector<std::string>& words, std::size_t others) {
  if (words.size() <= others) return directory_or_default(std::nullopt);
  return directory_or_default(words.front());
}

}  // namespace modcache::command_line
