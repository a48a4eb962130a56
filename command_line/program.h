// SPDX-License-Identifier: Apache-2.0
//
// Program: all commands, and one run of one of them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "command_line/command.h"

namespace modcache::command_line {

// Returns all commands in the order of the help text. (commands/*.cpp)
std::vector<CommandPtr> all_commands();

class Program {
 public:
  explicit Program(std::vector<CommandPtr> commands);
  ~Program();

  // Runs a command. `arguments` are those without the program's name. Returns the exit status.
  int run(const std::vector<std::string>& arguments, Output& output);

 private:
  struct Parser;
  int misuse(Output& output, const std::string& what, const std::string& command) const;
  std::string unknown_command(const std::string& name) const;

  std::vector<CommandPtr> commands_;
  std::unique_ptr<Parser> parser_;
};

}  // namespace modcache::command_line
