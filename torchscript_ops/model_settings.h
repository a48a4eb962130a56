// SPDX-License-Identifier: Apache-2.0
//
// Settings that come with a model: the file `modcache.json` in the model's directory, for servers
// that are given directories and run no code of the user's.
//
//     {"dir": "cache", "memory": "2GB", "strict": true, "min_run_us": 200}
//
// An object of options of `configure`, with texts, numbers or true/false for values. A relative
// `dir` lies in the model's directory. No file: nothing changes. A file that cannot be read, is
// no such object, or has an unknown option or a bad value: one message that names it and says what
// is valid, and nothing changes either.
//
// Settings are the process's, so there is an order of who decides on an option:
//   1. configure() and set_mode(), 2. the environment, 3. a model's file, 4. the default;
// whoever runs the server can always overrule what came with a model. Among the files of models
// that are loaded at once the first one decides, and one that differs is warned about. After
// unload_model() what the file set stays in force, and the next file may change it.
//
// Any thread. Nothing here fails for the caller.
#pragma once

#include <cstdint>
#include <string>

namespace modcache::ops {

// Applies the model's file. Returns what unload_model() takes, never 0.
std::int64_t load_model(const std::string& model_dir);

// The entries that the model's calls stored before are then safe, as after flush(). A number that
// is not known is ignored.
void unload_model(std::int64_t model);

}  // namespace modcache::ops
