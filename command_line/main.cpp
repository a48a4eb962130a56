// SPDX-License-Identifier: Apache-2.0
//
// The program `modcache`.
#include <csignal>
#include <string>
#include <vector>

#include "command_line/program.h"

int main(int argc, char** argv) {
  using namespace modcache::command_line;
  // The reader of the data may leave early. A command that changes a directory still has to finish.
  std::signal(SIGPIPE, SIG_IGN);
  // A write beyond `ulimit -f` then fails with an error instead of ending the process.
  std::signal(SIGXFSZ, SIG_IGN);
  Output output(stdout, stderr);
  const int code = Program(all_commands()).run({argv + (argc > 0 ? 1 : 0), argv + argc}, output);
  const modcache::Status written = output.finish();
  if (written.is_ok()) return code;
  output.say(written.message());
  return static_cast<int>(ExitCode::kMisuse);
}
