// SPDX-License-Identifier: Apache-2.0
//
// ValueReader: values by the places that the index gives. Values of one pack that lie closer than
// kJoinedGapBytes to each other come with one request; requests go out together.
#pragma once

#include <cstdint>
#include <vector>

#include "backends/objects/http_client.h"
#include "backends/objects/layout.h"
#include "base/bytes.h"
#include "base/hash.h"
#include "base/status.h"

namespace modcache::backends {

struct WantedValue {
  Digest128 name;
  Place place;
  // Results.
  SharedBytes value;     // a null owner: there is none
  bool is_gone = false;  // the server says that there is none, though the index has its place
};

class ValueReader {
 public:
  static constexpr std::uint64_t kJoinedGapBytes = std::uint64_t{64} << 10;

  explicit ValueReader(HttpClient& client) : client_(client) {}

  // The status is the first failure; what could be read is there all the same.
  Status read(std::vector<WantedValue>& wanted);

 private:
  // Values that come with one request: of `wanted`, those that `members` names.
  struct Group {
    HttpRequest request;
    std::vector<std::size_t> members;
  };
  std::vector<Group> packed_groups(std::vector<WantedValue>& wanted) const;
  static Group own_object_group(const WantedValue& wanted, std::size_t number);
  void hand_out(const Group& group, HttpAnswer answer, std::vector<WantedValue>& wanted);

  HttpClient& client_;
  // Where a server sends whole packs, all that is wanted of one is worth one request.
  bool ignores_ranges_ = false;
};

}  // namespace modcache::backends
