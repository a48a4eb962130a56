// SPDX-License-Identifier: Apache-2.0
#include "command_line/program.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>
#include <utility>

#include "command_line/terminal_text.h"
#include "command_line/units.h"

namespace modcache::command_line {
namespace {

constexpr char kVersion[] = "modcache " MODCACHE_VERSION "\n";
constexpr char kVersionJson[] = "{\"version\":\"" MODCACHE_VERSION "\"}\n";
constexpr char kVersionHelp[] = "Print the version and leave; with --json as JSON";

constexpr std::size_t kColumnsOfHelp = 80;

// Wraps what CLI11 wrote: lines of options and commands in their second column, other text by
// paragraph. A line that ends with a full stop or a colon ends its paragraph.
std::string wrapped_help(const std::string& help) {
  std::string out;
  std::string paragraph;
  const auto end_paragraph = [&] {
    if (paragraph.empty()) return;
    for (const auto& text : wrapped(paragraph, kColumnsOfHelp, false)) out += text + '\n';
    paragraph.clear();
  };
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    const bool is_prose = !line.empty() && line.front() != ' ' && line.rfind("Usage:", 0) != 0;
    if (is_prose) {
      paragraph += (paragraph.empty() ? "" : " ") + line;
      if (line.back() == '.' || line.back() == ':') end_paragraph();
      continue;
    }
    end_paragraph();
    const std::size_t gap = line.find("  ", std::min<std::size_t>(2, line.size()));
    const std::size_t second = gap == std::string::npos ? gap : line.find_first_not_of(' ', gap);
    if (columns_of(line) <= kColumnsOfHelp || second == std::string::npos ||
        second + kMinWrappedColumns > kColumnsOfHelp) {
      out += line + '\n';
      continue;
    }
    std::string label = line.substr(0, second);
    for (const auto& text : wrapped(line.substr(second), kColumnsOfHelp - second, false)) {
      out += label + text + '\n';
      label.assign(second, ' ');
    }
  }
  end_paragraph();
  return out;
}

int as_int(ExitCode code) { return static_cast<int>(code); }

ExitCode exit_code_of(const Status& failure) {
  return failure.code() == StatusCode::kCorruption ? ExitCode::kFindings : ExitCode::kMisuse;
}

}  // namespace

Result<ExitCode> Command::finding_if_not_found(Output& output, const Status& error) {
  if (!error.is_not_found()) return error;
  output.say(error.message());
  return ExitCode::kFindings;
}

struct Program::Parser {
  CLI::App application{"Looks after the directories in which modcache keeps what modules returned.",
                       "modcache"};
  struct Of {
    CLI::App* application;
    std::unique_ptr<Arguments> arguments;
  };
  std::vector<Of> commands;  // in the order of Program's commands
};

Program::Program(std::vector<CommandPtr> commands)
    : commands_(std::move(commands)), parser_(std::make_unique<Parser>()) {
  CLI::App& main = parser_->application;
  main.set_version_flag("--version", kVersion, kVersionHelp);
  main.set_help_flag("-h,--help", "Print this and leave");
  main.require_subcommand(1);
  main.get_formatter()->label("SUBCOMMAND", "COMMAND");
  main.footer(
      "DIR is a cache directory; without it MODCACHE_DIR says which.\n"
      "modcache COMMAND --help says what a command takes.\n"
      "Exit status: 0 success; 1 findings, such as damage, or a key or scope that is not there;\n"
      "2 misuse, such as a directory that is none.");
  for (const CommandPtr& command : commands_) {
    CLI::App* application = main.add_subcommand();
    auto arguments = std::make_unique<Arguments>(*application);
    command->declare(*arguments);
    application->group("Commands");
    application->set_version_flag("--version", kVersion, kVersionHelp);
    arguments->flag("--json", "Write one JSON object instead of tables", command->is_json_);
    arguments->flag("--wide", "Shorten nothing that does not fit the terminal", command->is_wide_);
    parser_->commands.push_back({application, std::move(arguments)});
  }
}

Program::~Program() = default;

int Program::misuse(Output& output, const std::string& what, const std::string& command) const {
  output.say(what);
  output.say("modcache " + (command.empty() ? "" : command + ' ') + "--help says what is valid");
  return as_int(ExitCode::kMisuse);
}

std::string Program::unknown_command(const std::string& name) const {
  std::vector<std::string> valid;
  for (const auto& command : parser_->commands) {
    valid.push_back(command.arguments->description().name);
  }
  return "there is no command '" + name + "'; valid are: " + joined(valid);
}

int Program::run(const std::vector<std::string>& arguments, Output& output) {
  const auto& parsers = parser_->commands;
  const auto chosen = std::find_if(parsers.begin(), parsers.end(), [&](const auto& parser) {
    return !arguments.empty() && parser.arguments->description().name == arguments.front();
  });
  const std::string name = chosen == parsers.end() ? "" : arguments.front();
  if (arguments.empty()) return misuse(output, "no command was given", "");
  if (name.empty() && arguments.front().rfind('-', 0) != 0) {
    return misuse(output, unknown_command(arguments.front()), "");
  }
  try {
    // CLI11 takes the arguments from the end of the vector.
    parser_->application.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForVersion&) {
    const bool is_json = std::find(arguments.begin(), arguments.end(), "--json") != arguments.end();
    output.write(is_json ? kVersionJson : kVersion);
    return as_int(ExitCode::kSuccess);
  } catch (const CLI::CallForHelp&) {
    CLI::App& application = name.empty() ? parser_->application : *chosen->application;
    output.write(wrapped_help(application.help()));
    return as_int(ExitCode::kSuccess);
  } catch (const CLI::ParseError& error) {
    return misuse(output, error.what(), name);
  }
  if (const Status status = chosen->arguments->check(); !status.is_ok()) {
    return misuse(output, status.message(), name);
  }
  auto& command = *commands_[static_cast<std::size_t>(chosen - parsers.begin())];
  auto code = command.run(output);
  if (code.is_ok()) return as_int(code.value());
  output.say(code.status().message());
  return as_int(exit_code_of(code.status()));
}

}  // namespace modcache::command_line
