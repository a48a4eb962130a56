// SPDX-License-Identifier: Apache-2.0
//
// Arguments: what a command takes on its line. A Command declares them; afterwards the targets,
// which are members of the Command, have what was given. Over CLI11, which arguments.cpp and
// program.cpp alone include.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace CLI {
class App;
}

namespace modcache::command_line {

struct Description {
  std::string name;     // "ls"
  std::string words;    // "[DIR] KEY"
  std::string summary;  // one line
  std::string details;  // paragraphs and examples
};

class Arguments {
 public:
  // `application` belongs to the program.
  explicit Arguments(CLI::App& application) : application_(application) {}

  void describe(Description description);
  const Description& description() const { return description_; }

  // What is given without a name, in order. More than `most` is misuse; fewer than `least`, too.
  void words(std::size_t least, std::size_t most, std::vector<std::string>& target);
  // `value` is what help calls it.
  void option(const std::string& name, const std::string& value, const std::string& help,
              std::optional<std::string>& target);
  void flag(const std::string& name, const std::string& help, bool& target);

  // kInvalidArgument: fewer words than the command needs.
  Status check() const;

 private:
  CLI::App& application_;
  Description description_;
  std::size_t least_words_ = 0;
  const std::vector<std::string>* words_ = nullptr;
};

// kInvalidArgument: `name` was given, and is empty. Nothing narrows like "everything", which is
// what that would mean.
Status check_narrows(const std::string& name, const std::optional<std::string>& given);

// What the word DIR stands for: what was given, else MODCACHE_DIR. kInvalidArgument: neither.
Result<std::string> directory_or_default(const std::optional<std::string>& given);
// The same, where DIR comes first, and `others` words follow it.
Result<std::string> directory_before(const std::vector<std::string>& words, std::size_t others);

}  // namespace modcache::command_line
