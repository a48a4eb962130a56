// SPDX-License-Identifier: Apache-2.0
#include "arguments.h"

#include <CLI/CLI.hpp>

namespace server {
namespace {

constexpr std::size_t kMostConnections = 1000;  // each has a thread, and a file handle

// "1x32" or "?x32".
std::vector<std::int64_t> parse_shape(const std::string& text) {
  std::vector<std::int64_t> shape;
  for (const std::string& part : CLI::detail::split(text, 'x')) {
    std::int64_t size = -1;
    if (part != "?" && (!CLI::detail::lexical_cast(part, size) || size < 0)) {
      throw CLI::ValidationError("--shape", "is '" + text +
                                                "'; valid are sizes with an x between them, and ? "
                                                "for any size, such as 1x32 or ?x3x224x224");
    }
    shape.push_back(size);
  }
  return shape;
}

void add_setting(const std::string& text, Configuration& configuration) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw CLI::ValidationError("--set",
                               "is '" + text + "'; valid is NAME=VALUE, such as --set memory=2GB");
  }
  configuration.settings[text.substr(0, equals)] = text.substr(equals + 1);
}

void add_options(CLI::App& app, Configuration& configuration) {
  app.add_option("--model", configuration.model,
                 "a TorchScript file (scripted or frozen), or a .pt2 package of AOTInductor")
      ->required()
      ->check(CLI::ExistingFile);
  app.add_option("--host", configuration.host, "the address to listen on")->capture_default_str();
  app.add_option("--port", configuration.port, "0: any that is free")
      ->capture_default_str()
      ->check(CLI::Range(0, 65535));
  app.add_option("--connections", configuration.connections,
                 "at a time; the next is answered with 503")
      ->capture_default_str()
      ->check(CLI::Range(std::size_t{1}, kMostConnections));
  app.add_option("--threads", configuration.threads, "of torch, for each run of the model")
      ->capture_default_str()
      ->check(CLI::Range(1, 256));
  app.add_option("--dtype", configuration.dtype, "of the model's input")
      ->capture_default_str()
      ->check(CLI::IsMember({"float32", "float64", "int64"}));
  app.add_option_function<std::string>(
      "--shape", [&](const std::string& text) { configuration.shape = parse_shape(text); },
      "of the model's input, such as ?x32; other inputs are refused");
  app.add_option(
         "--rows", configuration.rows,
         "of an input, at most, where --shape does not fix them; the memory of a run of the "
         "model grows with them")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30));
  app.add_option("--body-bytes", configuration.body_bytes, "of a request, at most")
      ->capture_default_str()
      ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 30));
  app.add_option("--request-timeout-ms", configuration.request_timeout_ms,
                 "until a request has arrived")
      ->capture_default_str()
      ->check(CLI::Range(1, 3'600'000));
  app.add_option("--idle-timeout-ms", configuration.idle_timeout_ms,
                 "until an idle connection is closed")
      ->capture_default_str()
      ->check(CLI::Range(1, 3'600'000));
  app.add_option("--drain-ms", configuration.drain_ms,
                 "how long a server that stops goes on to answer")
      ->capture_default_str()
      ->check(CLI::Range(0, 3'600'000));
  app.add_option("--name", configuration.names,
                 "a host name under which browsers may use the page's switch; may be repeated");
  app.add_option_function<std::string>(
      "--dir", [&](const std::string& dir) { configuration.settings["dir"] = dir; },
      "where entries lie: a directory, or a pack (default: MODCACHE_DIR)");
  app.add_option_function<std::vector<std::string>>(
      "--set",
      [&](const std::vector<std::string>& settings) {
        for (const std::string& text : settings) add_setting(text, configuration);
      },
      "NAME=VALUE, a setting of the cache, such as memory=2GB; may be repeated");
}

}  // namespace

bool read_arguments(int argc, char** argv, Configuration& configuration, int& exit_code) {
  CLI::App app("Serves a model whose calls modcache answers where it can.", "modcache_server");
  add_options(app, configuration);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    exit_code = app.exit(error) == 0 ? 0 : 2;
    return false;
  }
  return true;
}

}  // namespace server
