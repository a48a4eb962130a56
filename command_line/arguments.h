// SPDX-License-Identifier: Apache-2.0
//
// Arguments: the words and options of a command. A Command declares them, with members of its own
// as targets; parsing the line fills these. Implemented with CLI11, which only arguments.cpp and
// program.cpp include.
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
  // `application` belongs to the program, and outlives this object.
  explicit Arguments(CLI::App& application) : application_(application) {}

  void describe(Description description);
  const Description& description() const { return description_; }

  // Declares the words without a name, in order. More than `most`, or fewer than `least`, are
  // misuse.
  void words(std::size_t least, std::size_t most, std::vector<std::string>& target);
  // `value` is the name of the value in the help text.
  void option(const std::string& name, const std::string& value, const std::string& help,
              std::optional<std::string>& target);
  void flag(const std::string& name, const std::string& help, bool& target);

  // Returns kInvalidArgument when fewer words were given than the command needs.
  Status check() const;

 private:
  CLI::App& application_;
  Description description_;
  std::size_t least_words_ = 0;
  const std::vector<std::string>* words_ = nullptr;
};

// Returns the directory for the word DIR: the given one, or that of MODCACHE_DIR. kInvalidArgument
// when there is neither.
Result<std::string> directory_or_default(const std::optional<std::string>& given);
// Does the same where DIR comes first and `others` words follow it.
Result<std::string> directory_before(const std::vector<std::string>& words, std::size_t others);

}  // namespace modcache::command_line
