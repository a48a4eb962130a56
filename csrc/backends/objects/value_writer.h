// SPDX-License-Identifier: Apache-2.0
//
// ValueWriter: writes and removes values, and has a Writer make that known. The small values of one
// call go into one pack, as an object for each would cost a round trip for each.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "backends/objects/http_client.h"
#include "backends/objects/layout.h"
#include "backends/objects/object_index.h"
#include "backends/objects/writer.h"
#include "base/result.h"
#include "base/status.h"
#include "remote/backend.h"

namespace modcache::backends {

// Values of such a name are small, overwritten, and read anew each time.
bool is_control_name(std::string_view name);

class ValueWriter {
 public:
  // A value from this size on is an object of its own.
  static constexpr std::size_t kLargeBytes = std::size_t{256} << 10;
  // A pack that has so many bytes is followed by another one.
  static constexpr std::size_t kMostPackBytes = std::size_t{32} << 20;

  // Both outlive it.
  ValueWriter(HttpClient& client, ObjectIndex& index) : client_(client), index_(index) {}

  Status put_all(const std::vector<remote::NamedValue>& values, std::vector<bool>& are_stored);
  // For a name that has no value: returns false where the server says that somebody was first.
  Result<bool> put_own_object(const remote::NamedValue& value);
  Status remove_all(const std::vector<std::string>& names);

 private:
  struct Item;
  struct Plan;
  Plan plan(const std::vector<remote::NamedValue>& values, Writer& writer);
  void add_packed(const remote::NamedValue& value, Item& item, Plan& plan, Writer& writer);
  // Writes what is planned, and has it known. Each item says whether it is stored.
  Status write(Plan& plan, Writer& writer);
  // After a write: the index learns what is stored, if the head names it.
  void note_outcome(Plan& plan, bool is_known);
  Status make_known(const std::vector<PlacedName>& names, Writer& writer);
  bool is_known_control(const Digest128& name);
  Status remove_controls(const std::vector<HttpRequest>& removals, std::size_t count);
  // failure_of() for a PUT: a server that lets us read and not write is kForeign, or full.
  Status put_failure(const HttpRequest& request, const HttpAnswer& answer);

  HttpClient& client_;
  ObjectIndex& index_;
};

}  // namespace modcache::backends
