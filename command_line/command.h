// SPDX-License-Identifier: Apache-2.0
//
// Command: one of the program's commands. Each has a file of its own in commands/.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "command_line/arguments.h"
#include "command_line/output.h"
#include "command_line/report.h"

namespace modcache::command_line {

enum class ExitCode {
  kSuccess = 0,
  kFindings = 1,  // damage, a key or a scope that is not there
  kMisuse = 2,    // nothing was done: wrong arguments, a directory that is none or cannot be read
};

class Command {
 public:
  virtual ~Command() = default;

  // Says what the command is called and takes, into members of this object.
  virtual void declare(Arguments& arguments) = 0;

  // Called once, after all members were set. A failure is said: kCorruption is kFindings, all
  // others are kMisuse.
  virtual Result<ExitCode> run(Output& output) = 0;

 protected:
  Report report(Output& output) const {
    return Report(output, is_json_ ? Report::Form::kJson : Report::Form::kTables);
  }
  bool is_json() const { return is_json_; }

 private:
  friend class Program;
  bool is_json_ = false;
};

using CommandPtr = std::unique_ptr<Command>;

}  // namespace modcache::command_line
