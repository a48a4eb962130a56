// SPDX-License-Identifier: Apache-2.0
//
// Settings: every option of `configure`, its default, its environment variable
// (MODCACHE_<NAME>) and its text form. Values only: nothing here touches a file.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "cache/mode.h"
#include "codec/codec.h"
#include "policy/policy.h"
#include "store/store.h"

namespace modcache::cache {

// How much of the input a hit must match. kInput: dtypes, shapes, and the sample of its values
// (input_sample.h).
enum class Match { kInput, kNone };

// The dtype that floating-point values are stored as. Hits come back in the module's own dtype.
enum class StoredDtype { kKeep, kFloat16, kBfloat16 };

// Which results are stored. kSecond: those of keys that were asked for before.
enum class Admission { kAll, kSecond };

struct Settings {
  std::string dir;  // absolute
  Mode mode = Mode::kOn;
  std::uint64_t memory_bytes = 1'000'000'000;
  std::uint64_t disk_bytes = 100'000'000'000;
  std::int64_t max_age_s = 0;  // older entries are misses; 0: no bound
  StoredDtype dtype = StoredDtype::kKeep;
  codec::Codec codec = codec::Codec::kNone;
  store::Durability durability = store::Durability::kRelaxed;
  policy::Kind policy = policy::Kind::kAuto;
  Admission admission = Admission::kAll;
  Match match = Match::kInput;
  bool strict = false;
  std::string name_space;  // option `namespace`
  store::ReadVia io = store::ReadVia::kMmap;
  LogLevel log = LogLevel::kWarning;
  double verify_share = 0;               // of the hits that are run and compared; 0 to 1
  std::int64_t min_run_us = 0;           // results of shorter runs are not kept
  std::string remote;                    // a server's address, with its password; empty: none
  std::int64_t remote_timeout_ms = 500;  // the longest that a call waits for it
  std::int64_t remote_ttl_s = 0;         // after which it drops what was stored; 0: never
};

// Returns max_age_s in microseconds; 0 for ages that no entry reaches.
inline std::int64_t max_age_us(const Settings& settings) {
  constexpr std::int64_t kMostAgeSeconds = 100LL * 366 * 24 * 3600;
  return settings.max_age_s > kMostAgeSeconds ? 0 : settings.max_age_s * 1'000'000;
}

using Options = std::map<std::string, std::string>;

// Applies all of `options`, or none: an unknown name or a bad value is kInvalidArgument and says
// what was given and what is valid.
Status apply_options(const Options& options, Settings& settings);

// All options in the text form that apply_options takes, which is UTF-8 (text_of_path()), but for
// the password of `remote`, which is
// `***`: given back as it is, that stands for the password that is set.
Options to_options(const Settings& settings);

// The defaults, with the user's default directory.
Settings default_settings();
// Defaults, then the environment. A bad environment value is reported in `warnings`, and the
// default stands.
Settings settings_from_environment(std::vector<std::string>& warnings);

// Whether MODCACHE_<NAME> is there for this option, whatever it says.
bool is_in_environment(std::string_view option);

// "1073741824", "2GB", "512 MiB", "1.5g" -> bytes.
Result<std::uint64_t> parse_size_bytes(std::string_view text);

}  // namespace modcache::cache
