// SPDX-License-Identifier: Apache-2.0
//
// Command: one command of the program. Each has its own file in commands/.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "command_line/arguments.h"
#include "command_line/output.h"
#include "command_line/report.h"

namespace modcache::command_line {

enum class ExitCode {
  kSuccess = 0,
  kFindings = 1,  // damage, or a key or scope that does not exist
  kMisuse = 2,    // nothing was done: wrong arguments, not a cache directory, or not readable
};

class Command {
 public:
  virtual ~Command() = default;

  // Declares the command's name and arguments; the targets are members of this object.
  virtual void declare(Arguments& arguments) = 0;

  // Runs the command, once, after all members were set. The program prints the message of an error;
  // kCorruption becomes kFindings, any other error kMisuse.
  virtual Result<ExitCode> run(Output& output) = 0;

 protected:
  // The report about a directory begins with its path.
  Report report(Output& output, std::string_view directory = {}) const {
    return {output, is_json_ ? Report::Form::kJson : Report::Form::kTables, directory,
            is_wide_ ? Report::kAllColumns : output.terminal_columns()};
  }
  bool is_json() const { return is_json_; }
  // Says that a key, a scope or the like is not there, which is a finding. Any other error stays.
  static Result<ExitCode> finding_if_not_found(Output& output, const Status& error);

  // The words without a name. declare() says how many there may be.
  std::vector<std::string> words_;

 private:
  friend class Program;
  bool is_json_ = false;
  bool is_wide_ = false;
};

using CommandPtr = std::unique_ptr<Command>;

}  // namespace modcache::command_line
