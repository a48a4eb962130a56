// SPDX-License-Identifier: Apache-2.0
#include "command_line/commands/commands.h"

#include "command_line/program.h"

namespace modcache::command_line {

std::vector<CommandPtr> all_commands() {
  std::vector<CommandPtr> commands;
  for (const auto make :
       {make_stats_command, make_report_command, make_ls_command, make_show_command,
        make_verify_command, make_mode_command, make_clear_command, make_evict_command,
        make_pack_command, make_unpack_command, make_why_command, make_doctor_command,
        make_path_command}) {
    commands.push_back(make());
  }
  return commands;
}

}  // namespace modcache::command_line
