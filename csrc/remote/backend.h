// SPDX-License-Identifier: Apache-2.0
//
// Backend: a server that keeps values by name, as one thread sees it. The remote tier knows nothing
// else of a server; an engine is a class of this interface in libmodcache_remote.so
// (csrc/backends/).
//
// Names are made of letters, digits and the characters ".:_-/". Values are any bytes.
//
// Contract of every backend: one thread at a time. A call connects at need, blocks, and ends within
// the time-outs that the backend was made with, as far as its library allows; whoever must not wait
// longer calls through a Client (client.h). After a failure the object can be used again, and
// connects anew. Nothing that a server sends is trusted here beyond its length, which is bounded by
// kMostValueBytes: records have checksums (record.h).
//
// Failures: kNoSpace (the server is full) and kForeign (it does not let us write) concern writing
// alone. Every other code says that the server cannot be used at the moment: kBusy that it did not
// answer in time, kInvalidArgument that it refused the credentials or that the address is wrong,
// kIoError the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "base/status.h"

namespace modcache::remote {

inline constexpr std::size_t kMostValueBytes = std::size_t{1} << 32;

struct NamedValue {
  std::string name;
  std::string value;
};

class Backend {
 public:
  virtual ~Backend() = default;

  // Reads many values. `values` gets one for each name, in order; one with a null owner is not
  // there. Where a part of the server cannot be asked (a node of a cluster), what it has is not
  // there either; it is a failure only where nothing could be asked for.
  virtual Status get_all(const std::vector<std::string>& names,
                         std::vector<SharedBytes>& values) = 0;

  // Writes many values, replacing what has their names. They are dropped by the server after
  // `ttl_ms`, where it can do that; 0: never. `are_stored` gets one for each; those of a
  // part of the server that cannot be asked are not, which is no failure. A refusal is one.
  virtual Status put_all(const std::vector<NamedValue>& values, std::int64_t ttl_ms,
                         std::vector<bool>& are_stored) = 0;

  // Removes values. Names that are not there are no failure. kNotFound: a part of the server cannot
  // be asked, so some may be left; that is no failure of the server.
  virtual Status remove_all(const std::vector<std::string>& names) = 0;

  // Stores the value unless there is one of this name. Returns whether it did. kNotFound, here and
  // in remove_if(): the part of the server that has the name cannot be asked.
  virtual Result<bool> put_if_absent(const NamedValue& value) = 0;

  // Removes the value if it is `expected`. Returns whether it was. kForeign: the server does not
  // let us do that.
  virtual Result<bool> remove_if(std::string_view name, std::string_view expected) = 0;

  // Makes one round trip.
  virtual Status ping() = 0;
};

}  // namespace modcache::remote
