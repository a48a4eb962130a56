// SPDX-License-Identifier: Apache-2.0
#include "cache/settings.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "base/utf8.h"
#include "cache/home_directory.h"
#include "remote/address.h"

namespace modcache::cache {
namespace {

template <typename T>
struct Choice {
  std::string_view name;
  T value;
};

constexpr std::array<Choice<store::Durability>, 2> kDurabilities{
    {{"relaxed", store::Durability::kRelaxed}, {"strict", store::Durability::kStrict}}};
constexpr std::array<Choice<policy::Kind>, 3> kPolicies{
    {{"auto", policy::Kind::kAuto}, {"lru", policy::Kind::kLru}, {"keep", policy::Kind::kKeep}}};
constexpr std::array<Choice<Admission>, 2> kAdmissions{
    {{"all", Admission::kAll}, {"second", Admission::kSecond}}};
constexpr std::array<Choice<Match>, 2> kMatches{{{"input", Match::kInput}, {"none", Match::kNone}}};
constexpr std::array<Choice<StoredDtype>, 3> kStoredDtypes{{{"keep", StoredDtype::kKeep},
                                                            {"float16", StoredDtype::kFloat16},
                                                            {"bfloat16", StoredDtype::kBfloat16}}};
constexpr std::array<Choice<codec::Codec>, 2> kCodecs{
    {{"none", codec::Codec::kNone}, {"zstd", codec::Codec::kZstd}}};
constexpr std::array<Choice<store::ReadVia>, 2> kReadVias{
    {{"mmap", store::ReadVia::kMmap}, {"pread", store::ReadVia::kPread}}};
constexpr std::array<Choice<LogLevel>, 4> kLogLevels{{{"off", LogLevel::kOff},
                                                      {"error", LogLevel::kError},
                                                      {"warning", LogLevel::kWarning},
                                                      {"info", LogLevel::kInfo}}};
constexpr std::int64_t kMostTimeoutMs = 60'000;
constexpr std::array<Choice<bool>, 6> kBooleans{{{"false", false},
                                                 {"true", true},
                                                 {"0", false},
                                                 {"1", true},
                                                 {"False", false},
                                                 {"True", true}}};

std::string bad_value(std::string_view option, std::string_view given, std::string_view valid) {
  return "option '" + std::string(option) + "' is '" + std::string(given) + "', but must be " +
         std::string(valid);
}

template <typename Choices, typename T>
Status choose(std::string_view option, std::string_view given, const Choices& choices, T& target) {
  std::string valid = "one of: ";
  for (const auto& choice : choices) {
    if (choice.name == given) {
      target = choice.value;
      return Status::ok();
    }
    if (&choice != &choices.front()) valid += ", ";
    valid += choice.name;
  }
  return Status::invalid_argument(bad_value(option, given, valid));
}

template <typename Choices, typename T>
std::string name_of(const Choices& choices, T value) {
  for (const auto& choice : choices) {
    if (choice.value == value) return std::string(choice.name);
  }
  return {};
}

Status set_size(std::string_view option, std::string_view given, std::uint64_t& target) {
  auto size_bytes = parse_size_bytes(given);
  if (!size_bytes.is_ok()) {
    return Status::invalid_argument(bad_value(
        option, given, "a number of bytes such as 1073741824, 512MiB or 2GB, not negative"));
  }
  target = size_bytes.value();
  return Status::ok();
}

Status set_count(std::string_view option, std::string_view given, std::int64_t& target) {
  std::int64_t count = 0;
  const char* const end = given.data() + given.size();
  const auto [rest, error] = std::from_chars(given.data(), end, count);
  if (error != std::errc() || rest != end || given.front() == '-') {
    return Status::invalid_argument(
        bad_value(option, given, "an integer that is not negative, such as 0 or 5000"));
  }
  target = count;
  return Status::ok();
}

Status set_share(std::string_view option, std::string_view given, double& target) {
  double share = 0;
  const char* const end = given.data() + given.size();
  const auto [rest, error] = std::from_chars(given.data(), end, share);
  if (error != std::errc() || rest != end || !(share >= 0 && share <= 1) || std::signbit(share)) {
    return Status::invalid_argument(
        bad_value(option, given, "a number from 0 to 1, such as 0, 0.02 or 1"));
  }
  target = share;
  return Status::ok();
}

// The shortest text that reads back as the same number.
std::string text_of(double number) {
  std::array<char, 32> text{};
  const auto [end, error] =
      std::to_chars(text.data(), text.data() + text.size(), number, std::chars_format::general);
  return error == std::errc() ? std::string(text.data(), end) : std::string();
}

Status set_dir(std::string_view given, std::string& target) {
  if (given.empty() || given.find('\0') != std::string_view::npos) {
    return Status::invalid_argument(bad_value("dir", given, "the path of a directory"));
  }
  MODCACHE_ASSIGN_OR_RETURN(const std::string path, expand_home(path_of_text(given)));
  std::error_code error;
  const auto absolute = std::filesystem::absolute(std::filesystem::path(path), error);
  target = error ? path : absolute.lexically_normal().string();
  if (target.size() > 1 && target.back() == '/') target.pop_back();
  return Status::ok();
}

Status set_remote(std::string_view given, std::string& target) {
  if (given.empty()) {
    target.clear();
    return Status::ok();
  }
  // The address as to_options() shows it means the address in force.
  if (given == remote::without_password(target)) return Status::ok();
  const auto address = remote::parse_address(given);
  if (!address.is_ok()) {
    return Status::invalid_argument("option 'remote': " + address.status().message());
  }
  target = given;
  return Status::ok();
}

constexpr std::int64_t kMostTtlS = 315'360'000;

Status set_timeout(std::string_view given, std::int64_t& target) {
  std::int64_t timeout_ms = 0;
  MODCACHE_RETURN_IF_ERROR(set_count("remote_timeout_ms", given, timeout_ms));
  if (timeout_ms == 0 || timeout_ms > kMostTimeoutMs) {
    return Status::invalid_argument(
        bad_value("remote_timeout_ms", given, "a number of milliseconds from 1 to 60000"));
  }
  target = timeout_ms;
  return Status::ok();
}

Status set_ttl(std::string_view given, std::int64_t& target) {
  std::int64_t ttl_s = 0;
  MODCACHE_RETURN_IF_ERROR(set_count("remote_ttl", given, ttl_s));
  if (ttl_s > kMostTtlS) {
    return Status::invalid_argument(bad_value("remote_ttl", given,
                                              "a number of seconds up to 315360000, ten years; 0: "
                                              "never"));
  }
  target = ttl_s;
  return Status::ok();
}

// One row per option. An option is added here, as a field in settings.h, and where it acts.
struct Option {
  std::string_view name;
  Status (*set)(std::string_view given, Settings& settings);
  std::string (*get)(const Settings& settings);
};

constexpr std::array<Option, 20> kOptions{{
    {"dir", [](std::string_view v, Settings& s) { return set_dir(v, s.dir); },
     [](const Settings& s) { return text_of_path(s.dir); }},
    {"mode",
     [](std::string_view v, Settings& s) {
       auto mode = parse_mode(v);
       if (mode.is_ok()) s.mode = mode.value();
       return mode.status();
     },
     [](const Settings& s) { return std::string(mode_name(s.mode)); }},
    {"memory",
     [](std::string_view v, Settings& s) { return set_size("memory", v, s.memory_bytes); },
     [](const Settings& s) { return std::to_string(s.memory_bytes); }},
    {"disk", [](std::string_view v, Settings& s) { return set_size("disk", v, s.disk_bytes); },
     [](const Settings& s) { return std::to_string(s.disk_bytes); }},
    {"max_age",
     [](std::string_view v, Settings& s) { return set_count("max_age", v, s.max_age_s); },
     [](const Settings& s) { return std::to_string(s.max_age_s); }},
    {"dtype",
     [](std::string_view v, Settings& s) { return choose("dtype", v, kStoredDtypes, s.dtype); },
     [](const Settings& s) { return name_of(kStoredDtypes, s.dtype); }},
    {"codec", [](std::string_view v, Settings& s) { return choose("codec", v, kCodecs, s.codec); },
     [](const Settings& s) { return std::string(codec::codec_name(s.codec)); }},
    {"durability",
     [](std::string_view v, Settings& s) {
       return choose("durability", v, kDurabilities, s.durability);
     },
     [](const Settings& s) { return name_of(kDurabilities, s.durability); }},
    {"policy",
     [](std::string_view v, Settings& s) { return choose("policy", v, kPolicies, s.policy); },
     [](const Settings& s) { return std::string(policy::kind_name(s.policy)); }},
    {"admission",
     [](std::string_view v, Settings& s) {
       return choose("admission", v, kAdmissions, s.admission);
     },
     [](const Settings& s) { return name_of(kAdmissions, s.admission); }},
    {"match", [](std::string_view v, Settings& s) { return choose("match", v, kMatches, s.match); },
     [](const Settings& s) { return name_of(kMatches, s.match); }},
    {"strict",
     [](std::string_view v, Settings& s) { return choose("strict", v, kBooleans, s.strict); },
     [](const Settings& s) { return name_of(kBooleans, s.strict); }},
    {"namespace",
     [](std::string_view v, Settings& s) {
       s.name_space = v;
       return Status::ok();
     },
     [](const Settings& s) { return s.name_space; }},
    {"io", [](std::string_view v, Settings& s) { return choose("io", v, kReadVias, s.io); },
     [](const Settings& s) { return name_of(kReadVias, s.io); }},
    {"log", [](std::string_view v, Settings& s) { return choose("log", v, kLogLevels, s.log); },
     [](const Settings& s) { return name_of(kLogLevels, s.log); }},
    {"verify_share",
     [](std::string_view v, Settings& s) { return set_share("verify_share", v, s.verify_share); },
     [](const Settings& s) { return text_of(s.verify_share); }},
    {"min_run_us",
     [](std::string_view v, Settings& s) { return set_count("min_run_us", v, s.min_run_us); },
     [](const Settings& s) { return std::to_string(s.min_run_us); }},
    {"remote", [](std::string_view v, Settings& s) { return set_remote(v, s.remote); },
     [](const Settings& s) { return remote::without_password(s.remote); }},
    {"remote_timeout_ms",
     [](std::string_view v, Settings& s) { return set_timeout(v, s.remote_timeout_ms); },
     [](const Settings& s) { return std::to_string(s.remote_timeout_ms); }},
    {"remote_ttl", [](std::string_view v, Settings& s) { return set_ttl(v, s.remote_ttl_s); },
     [](const Settings& s) { return std::to_string(s.remote_ttl_s); }},
}};

const Option* find_option(std::string_view name) {
  for (const auto& option : kOptions) {
    if (option.name == name) return &option;
  }
  return nullptr;
}

std::string default_dir() {
  const char* cache_home = std::getenv("XDG_CACHE_HOME");
  if (cache_home != nullptr && cache_home[0] == '/') return std::string(cache_home) + "/modcache";
  const char* home = std::getenv("HOME");
  return (home != nullptr && home[0] != '\0' ? std::string(home) : std::string("/tmp")) +
         "/.cache/modcache";
}

std::string environment_name(std::string_view option) {
  std::string name = "MODCACHE_";
  for (const char c : option) {
    name.push_back(static_cast<char>(std::toupper(static_cast<unsigned char>(c))));
  }
  return name;
}

}  // namespace

Result<std::uint64_t> parse_size_bytes(std::string_view text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  const auto invalid = Status::invalid_argument("'" + std::string(text) + "' is not a size");
  if (error != std::errc() || !std::isfinite(number) || std::signbit(number)) return invalid;

  std::string unit;
  for (const char* c = rest; c != end; ++c) {
    if (*c != ' ') unit.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(*c))));
  }
  static constexpr std::array<Choice<double>, 14> kUnits{{{"", 1.0},
                                                          {"b", 1.0},
                                                          {"k", 1e3},
                                                          {"kb", 1e3},
                                                          {"kib", 1024.0},
                                                          {"m", 1e6},
                                                          {"mb", 1e6},
                                                          {"mib", 1048576.0},
                                                          {"g", 1e9},
                                                          {"gb", 1e9},
                                                          {"gib", 1073741824.0},
                                                          {"t", 1e12},
                                                          {"tb", 1e12},
                                                          {"tib", 1099511627776.0}}};
  for (const auto& choice : kUnits) {
    if (choice.name != unit) continue;
    const double size_bytes = number * choice.value;
    // 2^62 leaves room for sums of sizes in 64 bits.
    if (size_bytes > 4.6e18) return invalid;
    return static_cast<std::uint64_t>(size_bytes);
  }
  return invalid;
}

Status apply_options(const Options& options, Settings& settings) {
  Settings changed = settings;
  for (const auto& [name, value] : options) {
    const Option* option = find_option(name);
    if (option == nullptr) {
      std::string valid;
      for (const auto& known : kOptions) {
        if (!valid.empty()) valid += ", ";
        valid += known.name;
      }
      return Status::invalid_argument("unknown option '" + name + "'; valid options are: " + valid);
    }
    MODCACHE_RETURN_IF_ERROR(option->set(value, changed));
  }
  settings = std::move(changed);
  return Status::ok();
}

Options to_options(const Settings& settings) {
  Options options;
  for (const auto& option : kOptions) options.emplace(option.name, option.get(settings));
  return options;
}

Settings default_settings() {
  Settings settings;
  settings.dir = default_dir();
  return settings;
}

Settings settings_from_environment(std::vector<std::string>& warnings) {
  Settings settings = default_settings();
  for (const auto& option : kOptions) {
    const std::string variable = environment_name(option.name);
    const char* value = std::getenv(variable.c_str());
    if (value == nullptr) continue;
    const Status status = option.set(value, settings);
    if (!status.is_ok()) {
      warnings.push_back("environment variable " + variable + ": " + status.message() +
                         "; the default '" + option.get(settings) + "' is used");
    }
  }
  return settings;
}

bool is_in_environment(std::string_view option) {
  return std::getenv(environment_name(option).c_str()) != nullptr;
}

}  // namespace modcache::cache
