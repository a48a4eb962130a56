// SPDX-License-Identifier: Apache-2.0
//
// Context: everything besides the key that identifies an entry, and the address that both
// give together. Two calls share entries exactly when their contexts are equal and their keys
// are.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/hash.h"
#include "store/store.h"

namespace modcache::cache {

enum class Form : char { kWhole = 'w', kRow = 'r' };  // one value for a key, or one row of it

struct ContextParts {
  std::string_view name_space;
  std::string_view scope;
  std::string_view method;
  Form form = Form::kWhole;
  std::string_view arguments;  // non-tensor arguments in canonical form; empty when there are none
  std::string_view autocast;   // empty when autocast is off
};

bool operator==(const ContextParts& a, const ContextParts& b);

// False: `description` is not one that make_context wrote. The parts point into it.
bool unpack_context(std::string_view description, ContextParts& parts);

// The same for a context that comes from elsewhere. False also where its digest or its scope is not
// that of its description.
bool unpack_context(const store::Context& context, ContextParts& parts);

// How all descriptions of a namespace begin, and no others do.
std::string description_prefix_of(std::string_view name_space);

using ContextPtr = std::shared_ptr<const store::Context>;

// Cheap for the parts that this thread asked for last: training asks for one context thousands
// of times in a row.
ContextPtr make_context(const ContextParts& parts);

}  // namespace modcache::cache
