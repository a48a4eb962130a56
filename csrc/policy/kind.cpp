// SPDX-License-Identifier: Apache-2.0
#include "policy/policy.h"

namespace modcache::policy {
namespace {

struct Name {
  Kind kind;
  std::string_view text;
};
constexpr Name kNames[] = {
    {Kind::kAuto, "auto"}, {Kind::kLru, "lru"}, {Kind::kS3Fifo, "s3fifo"}, {Kind::kKeep, "keep"}};

}  // namespace

std::string_view kind_name(Kind kind) {
  for (const Name& name : kNames) {
    if (name.kind == kind) return name.text;
  }
  return "";
}

}  // namespace modcache::policy
