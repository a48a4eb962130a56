// SPDX-License-Identifier: Apache-2.0
#include "model_settings.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/process_wide.h"
#include "base/result.h"
#include "cache/cache.h"
#include "fs/posix_file_system.h"
#include "module/call/current_cache.h"

namespace modcache::ops {
namespace {

using cache::Cache;

constexpr const char* kFileName = "modcache.json";
constexpr std::size_t kMostBytes = 1U << 20;  // of a file with a dozen of options

struct ConfiguredModel {
  std::int64_t number;
  std::string dir;
  cache::Options options;  // those that its file set, as settings() shows them
};

struct LoadedModels : ProcessWide<LoadedModels> {
  std::vector<ConfiguredModel> models MODCACHE_GUARDED_BY(mutex);
  std::int64_t last_number MODCACHE_GUARDED_BY(mutex) = 0;
};

// kNotFound: there is no such file.
Result<std::string> read_file(const std::string& path) {
  std::error_code error;
  const auto kind = std::filesystem::status(path, error).type();
  if (kind == std::filesystem::file_type::not_found) return Status::not_found();
  // Opening a pipe would wait for somebody to write.
  if (!error && kind != std::filesystem::file_type::regular) {
    return Status::invalid_argument("not a regular file");
  }
  MODCACHE_ASSIGN_OR_RETURN(auto file,
                            fs::posix_file_system().open(path, fs::OpenMode::kReadFollowing));
  std::string text(kMostBytes + 1, '\0');
  MODCACHE_ASSIGN_OR_RETURN(const auto size_bytes, file->read_at(0, text.data(), text.size()));
  if (size_bytes > kMostBytes) return Status::invalid_argument("longer than 1 MiB");
  text.resize(size_bytes);
  return text;
}

Result<cache::Options> parse(const std::string& text) {
  constexpr const char* kValid =
      "valid is an object of options, such as {\"dir\": \"cache\", \"memory\": \"2GB\"}";
  nlohmann::json parsed;
  try {
    parsed = nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    return Status::invalid_argument(std::string(error.what()) + "; " + kValid);
  }
  if (!parsed.is_object()) {
    return Status::invalid_argument(std::string("the file holds a JSON ") + parsed.type_name() +
                                    "; " + kValid);
  }
  cache::Options options;
  for (const auto& [name, value] : parsed.items()) {
    // Whoever wrote a model must not decide where a process sends its results.
    if (name.rfind("remote", 0) == 0) {
      return Status::invalid_argument(
          "option '" + name +
          "' cannot come with a model: the server is chosen by who runs the process "
          "(MODCACHE_REMOTE, or configure)");
    }
    if (!value.is_string() && !value.is_number() && !value.is_boolean()) {
      return Status::invalid_argument("option '" + name + "' is a JSON " + value.type_name() +
                                      ", but must be a string, a number, true or false");
    }
    options.emplace(name, value.is_string() ? value.get<std::string>() : value.dump());
  }
  return options;
}

// The file's options as settings() shows them; empty where there is no file.
Result<cache::Options> options_of(const std::string& model_dir) {
  const std::filesystem::path dir(model_dir);
  const auto text = read_file(dir / kFileName);
  if (text.is_not_found()) return cache::Options();
  if (!text.is_ok()) return text.status();
  MODCACHE_ASSIGN_OR_RETURN(auto options, parse(text.value()));
  const auto found = options.find("dir");
  if (found != options.end() && !found->second.empty() && found->second.front() != '~') {
    found->second = dir / found->second;  // the second one alone, if it is absolute
  }
  cache::Settings settings;
  MODCACHE_RETURN_IF_ERROR(apply_options(options, settings));
  const cache::Options shown = to_options(settings);
  for (auto& [name, value] : options) value = shown.at(name);
  return options;
}

// Whether a model that is loaded decided otherwise; says so.
bool is_decided(const std::vector<ConfiguredModel>& models, const std::string& file,
                const std::string& name, const std::string& value) {
  for (const ConfiguredModel& other : models) {
    const auto decided = other.options.find(name);
    if (decided == other.options.end() || decided->second == value) continue;
    log(LogLevel::kWarning, "model settings:" + file + ":" + name,
        "option '" + name + "' is '" + value + "' in '" + file + "', but '" + decided->second +
            "' is in force for the model in '" + other.dir +
            "'. Settings are the process's, so it stays; give both models the same value, or "
            "servers of their own");
    return true;
  }
  return false;
}

}  // namespace

std::int64_t load_model(const std::string& model_dir) {
  Cache& cache = *module::current_cache();
  cache.settings();  // reads the environment, which says how much is logged
  const std::string file = std::filesystem::path(model_dir) / kFileName;
  auto read = options_of(model_dir);
  if (!read.is_ok()) {
    log(LogLevel::kError, "model settings:" + file,
        "'" + file + "': " + read.status().message() + ". Nothing of this file is applied");
  }

  LoadedModels& loaded = LoadedModels::instance();
  MutexLock lock(loaded.mutex);
  cache::Options options;
  for (const auto& [name, value] : read.is_ok() ? read.value() : cache::Options()) {
    if (cache.is_given(name)) {
      log(LogLevel::kInfo, "model settings:" + file + ":" + name,
          "option '" + name + "' of '" + file +
              "' gives way to what was configured or to the environment");
    } else if (!is_decided(loaded.models, file, name, value)) {
      options.emplace(name, value);
    }
  }
  const Status applied = cache.configure_unset(options);
  if (!applied.is_ok()) log(LogLevel::kError, "model settings:" + file, applied.message());
  loaded.models.push_back({++loaded.last_number, model_dir, std::move(options)});
  return loaded.last_number;
}

void unload_model(std::int64_t model) {
  LoadedModels& loaded = LoadedModels::instance();
  {
    MutexLock lock(loaded.mutex);
    const auto found =
        std::find_if(loaded.models.begin(), loaded.models.end(),
                     [model](const ConfiguredModel& one) { return one.number == model; });
    if (found == loaded.models.end()) return;
    loaded.models.erase(found);
  }
  module::current_cache()->flush();
}

}  // namespace modcache::ops
