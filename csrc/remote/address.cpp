// SPDX-License-Identifier: Apache-2.0
#include "remote/address.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "fs/posix_file_system.h"

namespace modcache::remote {
namespace {

struct Scheme {
  std::string_view name;
  Engine engine;
  bool uses_tls;
  bool is_socket;
  std::uint16_t port;
};

constexpr std::array<Scheme, 10> kSchemes{
    {{"redis", Engine::kRedis, false, false, 6379},
     {"rediss", Engine::kRedis, true, false, 6379},
     {"redis+unix", Engine::kRedis, false, true, 0},
     {"redis+cluster", Engine::kRedisCluster, false, false, 6379},
     {"rediss+cluster", Engine::kRedisCluster, true, false, 6379},
     {"valkey", Engine::kRedis, false, false, 6379},
     {"valkeys", Engine::kRedis, true, false, 6379},
     {"valkey+unix", Engine::kRedis, false, true, 0},
     {"valkey+cluster", Engine::kRedisCluster, false, false, 6379},
     {"valkeys+cluster", Engine::kRedisCluster, true, false, 6379}}};
constexpr std::string_view kAfterScheme = "://";
constexpr std::string_view kSchemeCharacters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-.";
constexpr std::string_view kHidden = "***";
// A host's name has none of them: without its brackets an address of IPv6 could end with a port.
constexpr std::string_view kNotInHost = ":[] \t\r\n";

constexpr std::array<std::string_view, 8> kParameters{"auth_file", "ca",       "cert",   "db",
                                                      "key",       "key_file", "prefix", "verify"};

bool is_parameter(std::string_view name) {
  return std::find(kParameters.begin(), kParameters.end(), name) != kParameters.end();
}

Status wrong(std::string_view given, const std::string& why) {
  return Status::invalid_argument("'" + without_password(given) + "' " + why);
}

const Scheme* find_scheme(std::string_view name) {
  for (const Scheme& scheme : kSchemes) {
    if (scheme.name == name) return &scheme;
  }
  return nullptr;
}

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// Text with %xx for characters that have a meaning in an address.
std::string decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool is_code = text[i] == '%' && i + 2 < text.size() && digit_of(text[i + 1]) >= 0 &&
                         digit_of(text[i + 2]) >= 0;
    if (!is_code) {
      out.push_back(text[i]);
      continue;
    }
    out.push_back(static_cast<char>(digit_of(text[i + 1]) * 16 + digit_of(text[i + 2])));
    i += 2;
  }
  return out;
}

// An address in parts. A password may contain an `@`, a `/` and a `?` only as %xx, but whoever
// forgets that, or the scheme, must not see it in a message: userinfo ends with the last `@` of
// all.
struct Parts {
  std::string_view scheme;
  std::string_view userinfo;
  std::string_view hosts;
  std::string_view path;
  std::string_view parameters;
  bool has_scheme = false;
};

Parts parts_of(std::string_view text) {
  Parts parts;
  // A "://" after other characters than those of a scheme is part of a password.
  const std::size_t scheme_end = text.find_first_not_of(kSchemeCharacters);
  if (scheme_end != std::string_view::npos &&
      text.substr(scheme_end, kAfterScheme.size()) == kAfterScheme) {
    parts.has_scheme = true;
    parts.scheme = text.substr(0, scheme_end);
    text.remove_prefix(scheme_end + kAfterScheme.size());
  }
  const std::size_t at = text.rfind('@');
  if (at != std::string_view::npos) {
    parts.userinfo = text.substr(0, at);
    text.remove_prefix(at + 1);
  }
  const std::size_t question = text.find('?');
  if (question != std::string_view::npos) {
    parts.parameters = text.substr(question + 1);
    text = text.substr(0, question);
  }
  const std::size_t slash = text.find('/');
  parts.hosts = text.substr(0, slash);
  if (slash != std::string_view::npos) parts.path = text.substr(slash);
  return parts;
}

bool parse_port(std::string_view text, std::uint16_t& port) {
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && rest == text.data() + text.size() && port != 0;
}

bool parse_host(std::string_view text, std::uint16_t default_port, Host& host) {
  host.port = default_port;
  std::size_t name_end = text.rfind(':');
  if (!text.empty() && text.front() == '[') {  // an address of IPv6
    const std::size_t bracket = text.find(']');
    if (bracket == std::string_view::npos) return false;
    host.name = std::string(text.substr(1, bracket - 1));
    text.remove_prefix(bracket + 1);
    const bool has_good_port =
        text.empty() || (text.front() == ':' && parse_port(text.substr(1), host.port));
    return has_good_port && !host.name.empty();
  }
  if (name_end != std::string_view::npos) {
    if (!parse_port(text.substr(name_end + 1), host.port)) return false;
    text = text.substr(0, name_end);
  }
  host.name = std::string(text);
  const bool has_controls = std::any_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) < ' ' || c == '\x7f';
  });
  return !host.name.empty() && !has_controls &&
         text.find_first_of(kNotInHost) == std::string_view::npos;
}

Status set_hosts(std::string_view given, const Scheme& scheme, std::string_view hosts,
                 Address& address) {
  if (scheme.is_socket) {
    return hosts.empty() ? Status::ok()
                         : wrong(given, "names a host; a socket is redis+unix:///its/path");
  }
  while (true) {
    const std::size_t comma = hosts.find(',');
    Host host;
    if (!parse_host(hosts.substr(0, comma), scheme.port, host)) {
      return wrong(given, "has no good host; valid is host, host:port or [IPv6]:port");
    }
    address.hosts.push_back(std::move(host));
    if (comma == std::string_view::npos) return Status::ok();
    hosts.remove_prefix(comma + 1);
  }
}

Status set_parameters(std::string_view given, std::string_view text, Address& address) {
  while (!text.empty()) {
    const std::size_t end = text.find('&');
    const std::string_view one = text.substr(0, end);
    const std::size_t equals = one.find('=');
    const std::string_view name = one.substr(0, equals);
    if (!is_parameter(name) || equals == std::string_view::npos) {
      std::string valid;
      for (const std::string_view known : kParameters) {
        valid.append(valid.empty() ? "" : ", ").append(known);
      }
      return wrong(given, "has the parameter '" + std::string(name) +
                              "'; valid are name=value, with the names " + valid);
    }
    address.parameters[std::string(name)] = decoded(one.substr(equals + 1));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return Status::ok();
}

Status check_database(std::string_view given, const Address& address, bool is_socket) {
  std::string_view database = address.parameter("db");
  if (!is_socket && address.path.size() > 1) database = std::string_view(address.path).substr(1);
  if (database.empty()) return Status::ok();
  std::uint16_t number = 0;
  const auto [rest, error] =
      std::from_chars(database.data(), database.data() + database.size(), number);
  if (error != std::errc() || rest != database.data() + database.size()) {
    return wrong(given, "has the database '" + std::string(database) + "', which is no number");
  }
  if (address.engine == Engine::kRedisCluster && number != 0) {
    return wrong(given, "names a database, but a cluster has only 0");
  }
  return Status::ok();
}

// Whether a user and a password may stand where hosts should, as where their @ was forgotten: a
// host with something else than a port behind its colon.
bool may_hold_password(std::string_view hosts) {
  while (!hosts.empty()) {
    const std::size_t comma = hosts.find(',');
    const std::string_view host = hosts.substr(0, comma);
    const std::size_t colon = host.find(':');
    const bool is_ipv6 = !host.empty() && host.front() == '[';
    if (!is_ipv6 && colon != std::string_view::npos &&
        host.find_first_not_of("0123456789", colon + 1) != std::string_view::npos) {
      return true;
    }
    hosts.remove_prefix(comma == std::string_view::npos ? hosts.size() : comma + 1);
  }
  return false;
}

bool is_good_prefix(std::string_view prefix) {
  return std::all_of(prefix.begin(), prefix.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.' || c == '/';
  });
}

// A value that would be ignored, or would fail only once the server is needed, is refused.
Status check_values(std::string_view given, const Address& address) {
  if (address.password == kHidden) {
    return wrong(given,
                 "has *** in the place of a password, as settings() shows it; give the "
                 "password, or leave it to MODCACHE_REMOTE_PASSWORD");
  }
  if (!is_good_prefix(address.parameter("prefix"))) {
    return wrong(given, "has a prefix with other characters than letters, digits and -_./");
  }
  for (const char* const name : {"key_file", "auth_file"}) {
    if (address.parameters.count(name) == 0 || !address.parameter(name).empty()) continue;
    return wrong(given, std::string("has an empty ") + name + "; it names a file");
  }
  const std::string_view verify = address.parameter("verify");
  if (!verify.empty() && verify != "0" && verify != "1") {
    return wrong(given, "has verify=" + std::string(verify) + "; valid are 0 and 1");
  }
  if (address.uses_tls) return Status::ok();
  for (const char* const name : {"ca", "cert", "key", "verify"}) {
    if (address.parameter(name).empty()) continue;
    return wrong(given, "has the parameter '" + std::string(name) +
                            "' of TLS, which it does not use; with TLS it begins with rediss://");
  }
  return Status::ok();
}

// The value of an unknown parameter may be a password.
std::string shown_parameters(std::string_view text) {
  std::string shown;
  while (true) {
    const std::size_t end = text.find('&');
    const std::string_view one = text.substr(0, end);
    const std::size_t equals = one.find('=');
    const bool is_shown = equals == std::string_view::npos || equals + 1 == one.size() ||
                          is_parameter(one.substr(0, equals));
    shown.append(is_shown ? one : one.substr(0, equals + 1)).append(is_shown ? "" : kHidden);
    if (end == std::string_view::npos) return shown;
    shown.push_back('&');
    text.remove_prefix(end + 1);
  }
}

std::string from_environment(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

constexpr std::size_t kMostBytes = 1 << 16;

}  // namespace

std::string_view Address::parameter(std::string_view name) const {
  const auto found = parameters.find(std::string(name));
  return found != parameters.end() ? std::string_view(found->second) : std::string_view();
}

Result<Address> parse_address(std::string_view text) {
  const Parts parts = parts_of(text);
  const Scheme* const scheme = parts.has_scheme ? find_scheme(parts.scheme) : nullptr;
  if (scheme == nullptr) {
    std::string valid;
    for (const Scheme& known : kSchemes) {
      valid += (valid.empty() ? "" : ", ") + std::string(known.name) + std::string(kAfterScheme);
    }
    return wrong(text, "is no address of a server; it begins with one of: " + valid);
  }
  if (parts.userinfo.find_first_of("/?") != std::string_view::npos) {
    return wrong(text,
                 "has an @ after a / or a ?; write %40 for @ there, and in a user or password "
                 "also %2F for / and %3F for ?");
  }
  Address address;
  address.engine = scheme->engine;
  address.uses_tls = scheme->uses_tls;
  const std::size_t colon = parts.userinfo.find(':');
  address.user = decoded(parts.userinfo.substr(0, colon));
  if (colon != std::string_view::npos) address.password = decoded(parts.userinfo.substr(colon + 1));
  address.path = decoded(parts.path);
  MODCACHE_RETURN_IF_ERROR(set_hosts(text, *scheme, parts.hosts, address));
  MODCACHE_RETURN_IF_ERROR(set_parameters(text, parts.parameters, address));
  if (scheme->is_socket && address.path.size() < 2) {
    return wrong(text, "names no socket; valid is redis+unix:///its/path?db=0");
  }
  MODCACHE_RETURN_IF_ERROR(check_database(text, address, scheme->is_socket));
  MODCACHE_RETURN_IF_ERROR(check_values(text, address));
  return address;
}

std::string without_password(std::string_view text) {
  const Parts parts = parts_of(text);
  std::string shown(text.substr(0, text.size() - parts.parameters.size()));
  shown += shown_parameters(parts.parameters);
  // A password whose @ was forgotten is among the hosts.
  if (parts.userinfo.empty() && may_hold_password(parts.hosts)) {
    const auto begin = static_cast<std::size_t>(parts.hosts.data() - text.data());
    return shown.replace(begin, parts.hosts.size(), kHidden);
  }
  const std::size_t colon = parts.userinfo.find(':');
  // A password whose colon was forgotten looks like a user.
  const std::string_view password =
      parts.userinfo.substr(colon != std::string_view::npos ? colon + 1 : 0);
  if (password.empty()) return shown;
  const auto begin = static_cast<std::size_t>(password.data() - text.data());
  return shown.replace(begin, password.size(), kHidden);
}

Status read_credentials(Address& address) {
  const std::string file(address.parameter("auth_file"));
  if (!file.empty()) {
    MODCACHE_ASSIGN_OR_RETURN(
        const std::string line,
        read_secret_file(file, "auth_file", "user:password, or the password alone"));
    const std::size_t colon = line.find(':');
    if (colon != std::string::npos) address.user = line.substr(0, colon);
    address.password = colon != std::string::npos ? line.substr(colon + 1) : line;
    return Status::ok();
  }
  if (address.user.empty()) address.user = from_environment("MODCACHE_REMOTE_USER");
  if (address.password.empty()) address.password = from_environment("MODCACHE_REMOTE_PASSWORD");
  if (!address.user.empty() && address.password.empty()) {
    return Status::invalid_argument(
        "the address has a user and no password; write user:password@, or :password@ for a "
        "password alone, or give it by auth_file or MODCACHE_REMOTE_PASSWORD");
  }
  return Status::ok();
}

Result<std::string> read_secret_file(const std::string& path, const std::string& parameter,
                                     const std::string& holds) {
  const auto file = fs::posix_file_system().open(path, fs::OpenMode::kReadFollowing);
  Status failure = file.status();
  if (file.is_ok()) {
    std::string secret(kMostBytes + 1, '\0');
    const auto read = file.value()->read_at(0, secret.data(), secret.size());
    failure = read.status();
    secret.resize(read.is_ok() ? read.value() : 0);
    if (secret.size() > kMostBytes) {
      failure = Status::invalid_argument("it is too large for a secret");
      secret.clear();
    }
    while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
    if (!secret.empty()) return secret;
  }
  return Status::invalid_argument(
      "the file '" + path + "' (parameter " + parameter + " of remote) " +
      (failure.is_ok() ? "is empty" : "cannot be read: " + failure.message()) + "; it holds " +
      holds);
}

}  // namespace modcache::remote
