// SPDX-License-Identifier: Apache-2.0
//
// The program `modcache`.
#include <csignal>
#include <string>
#include <vector>

#include "command_line/program.h"

int main(int argc, char** argv) {
  using namespace modcache::command_line;
  // Who reads the data may leave early; a command that changes a directory still ends what it
  // began.
  std::signal(SIGPIPE, SIG_IGN);
  // Beyond `ulimit -f` a write fails, then, and says so.
  std::signal(SIGXFSZ, SIG_IGN);
  Output output(stdout, stderr);
  const int code = Program(all_commands()).run({argv + (argc > 0 ? 1 : 0), argv + argc}, output);
  const modcache::Status written = output.finish();
  if (written.is_ok()) return code;
  output.say(written.message());
  return static_cast<int>(ExitCode::kMisuse);
}
