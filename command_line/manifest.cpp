// SPDX-License-Identifier: Apache-2.0
#include "command_line/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace modcache::command_line {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kFormat = 1;
constexpr std::string_view kAbout = "manifest ";
constexpr std::string_view kClass = "class ";

std::string text_in(const Json& object, const char* name) {
  const auto member = object.find(name);
  return member != object.end() && member->is_string() ? member->get<std::string>() : "";
}

std::int64_t number_in(const Json& object, const char* name) {
  const auto member = object.find(name);
  return member != object.end() && member->is_number_integer() ? member->get<std::int64_t>() : 0;
}

Manifest::Names names_in(const Json& object, const char* name) {
  const auto member = object.find(name);
  if (member == object.end() || !member->is_object()) return std::nullopt;
  std::map<std::string, std::string> names;
  for (const auto& [key, value] : member->items()) {
    if (value.is_string()) names.emplace(key, value.get<std::string>());
  }
  return names;
}

// Returns the differences by name; none when one of the manifests does not have these names.
std::vector<Difference> between(const char* kind, const Manifest::Names& a,
                                const Manifest::Names& b) {
  std::vector<Difference> found;
  if (!a || !b) return found;
  std::map<std::string, Difference> by_name;
  for (const auto& [name, digest] : *a) by_name[name].in_a = digest;
  for (const auto& [name, digest] : *b) by_name[name].in_b = digest;
  for (auto& [name, difference] : by_name) {
    if (difference.in_a == difference.in_b) continue;
    difference.kind = kind;
    difference.name = name;
    found.push_back(std::move(difference));
  }
  return found;
}

void append(std::vector<Difference>& all, std::vector<Difference> more) {
  std::move(more.begin(), more.end(), std::back_inserter(all));
}

void compare_texts(std::vector<Difference>& all, const char* kind, const std::string& a,
                   const std::string& b) {
  if (a != b) all.push_back({kind, "", a, b});
}

// Names a class only where none of its functions explains the difference.
std::vector<Difference> of_code(const Manifest& a, const Manifest& b) {
  std::vector<Difference> code = between("code", a.code, b.code);
  const auto is_class = [](const Difference& d) { return d.name.rfind(kClass, 0) == 0; };
  if (!std::all_of(code.begin(), code.end(), is_class)) {
    code.erase(std::remove_if(code.begin(), code.end(), is_class), code.end());
  }
  return code;
}

}  // namespace

std::optional<Manifest> parse_manifest(std::string_view text) {
  const Json object = Json::parse(text, nullptr, false);
  if (!object.is_object() || number_in(object, "format") != kFormat) return std::nullopt;
  Manifest manifest;
  manifest.scope = text_in(object, "scope");
  manifest.face = text_in(object, "face");
  manifest.class_name = text_in(object, "class");
  manifest.method = text_in(object, "method");
  manifest.torch = text_in(object, "torch");
  manifest.python = text_in(object, "python");
  manifest.created_us = number_in(object, "created_us");
  manifest.process = number_in(object, "pid");
  manifest.code = names_in(object, "code");
  manifest.attributes = names_in(object, "attributes");
  manifest.modules = names_in(object, "modules");
  manifest.packages = names_in(object, "packages");
  manifest.package_values = text_in(object, "package_values");
  manifest.tensors = names_in(object, "tensors");
  return manifest;
}

Result<std::vector<Manifest>> manifests_in(store::Listing& listing) {
  std::vector<Manifest> manifests;
  const Status status = listing.visit_notes([&](std::string_view about, std::string_view text) {
    if (about.substr(0, kAbout.size()) != kAbout) return;
    about.remove_prefix(kAbout.size());
    // A namespace may contain a newline and a fingerprint cannot, so the scope in the text tells
    // where it begins.
    auto manifest = parse_manifest(text);
    if (!manifest || about.size() <= manifest->scope.size()) return;
    const std::size_t size = about.size() - manifest->scope.size() - 1;
    if (about[size] != '\n' || about.substr(size + 1) != manifest->scope) return;
    manifest->name_space = about.substr(0, size);
    manifests.push_back(std::move(*manifest));
  });
  if (!status.is_ok()) return status;
  return manifests;
}

std::vector<Difference> differences(const Manifest& a, const Manifest& b) {
  std::vector<Difference> all;
  if (a.face == b.face) {
    append(all, between("weight", a.tensors, b.tensors));
    append(all, of_code(a, b));
    append(all, between("attribute", a.attributes, b.attributes));
    append(all, between("submodule", a.modules, b.modules));
    append(all, between("package", a.packages, b.packages));
    if (a.packages && a.packages == b.packages) {  // other files would have other values
      compare_texts(all, kPackageValues, a.package_values, b.package_values);
    }
  }
  // The submodule without a name is the module itself, whose class is compared next.
  all.erase(
      std::remove_if(all.begin(), all.end(),
                     [](const Difference& d) { return d.kind == "submodule" && d.name.empty(); }),
      all.end());
  compare_texts(all, "class", a.class_name, b.class_name);
  compare_texts(all, "method", a.method, b.method);
  compare_texts(all, "namespace", a.name_space, b.name_space);
  compare_texts(all, "face", a.face, b.face);
  compare_texts(all, "torch", a.torch, b.torch);
  compare_texts(all, "python", a.python, b.python);
  return all;
}

}  // namespace modcache::command_line
