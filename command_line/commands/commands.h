// SPDX-License-Identifier: Apache-2.0
//
// Factories of the commands. Each is in the file of its name (unpack: pack.cpp).
#pragma once

#include "command_line/command.h"

namespace modcache::command_line {

CommandPtr make_stats_command();
CommandPtr make_report_command();
CommandPtr make_ls_command();
CommandPtr make_show_command();
CommandPtr make_verify_command();
CommandPtr make_mode_command();
CommandPtr make_clear_command();
CommandPtr make_evict_command();
CommandPtr make_pack_command();
CommandPtr make_unpack_command();
CommandPtr make_why_command();
CommandPtr make_doctor_command();
CommandPtr make_path_command();

}  // namespace modcache::command_line
