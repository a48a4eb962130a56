// SPDX-License-Identifier: Apache-2.0
//
// Address: the option `remote`, taken apart.
//
//     redis://user:password@host:6379/0      rediss:// the same with TLS
//     redis://primary:6379,replica:6379      whichever of them is the primary
//     redis+cluster://host:6379,host:6380    some nodes of a cluster; rediss+cluster:// with TLS
//     redis+unix:///run/redis.sock?db=0      a socket of this machine
//     valkey:// ...                          the same as redis://, in each of these forms
//
// Parameters follow a `?`, as `name=value` joined by `&`. Credentials may stand in the address, in
// the environment or in a file; in the text that others see the password is `***`,
// and so is a user without one. An `@` that does
// not end credentials is written as %40, and in credentials a `/` as %2F and a `?` as %3F.
// Pure functions but for read_credentials().
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace modcache::remote {

enum class Engine { kRedis, kRedisCluster };

struct Host {
  std::string name;
  std::uint16_t port = 0;
};

struct Address {
  Engine engine = Engine::kRedis;
  bool uses_tls = false;
  std::string user;
  std::string password;
  std::vector<Host> hosts;  // none: a socket of this machine
  std::string path;         // begins with `/` or is empty: database or socket
  std::map<std::string, std::string> parameters;

  // Empty where the parameter is not given.
  std::string_view parameter(std::string_view name) const;
};

// kInvalidArgument says what was given, without its password, and what is valid.
Result<Address> parse_address(std::string_view text);

// The text as it may be shown: the password is replaced by `***`, and so are the values of unknown
// parameters. Also of a text that parse_address() refuses.
std::string without_password(std::string_view text);

// Fills in what the address lacks: user and password from the file that parameter `auth_file` names
// ("user:password", ":password" or "password", one line), else from MODCACHE_REMOTE_USER and
// MODCACHE_REMOTE_PASSWORD.
Status read_credentials(Address& address);

// read_secret_file(): the content of a file that a secret is in, without the end of its line.
// Follows links, as secrets are often mounted so. kInvalidArgument: it cannot be read, or is empty.
// The message has the path, `parameter`, which named it, and what it `holds`.
Result<std::string> read_secret_file(const std::string& path, const std::string& parameter,
                                     const std::string& holds);

}  // namespace modcache::remote
