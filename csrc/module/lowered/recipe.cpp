// SPDX-License-Identifier: Apache-2.0
#include "module/lowered/recipe.h"

#include <charconv>
#include <map>
#include <utility>

namespace modcache::module {
namespace {

constexpr std::string_view kRecipeTitle = "modcache recipe 1";
constexpr char kValue = 'v';
constexpr char kSubmodule = 's';
constexpr char kSameValue = 'a';

// Escapes blanks and line ends, which separate the parts of a step. Names may hold anything but a
// dot.
std::string escaped(const std::string& path) {
  std::string text;
  for (const char c : path) {
    text += c == '%' ? "%25" : c == ' ' ? "%20" : c == '\n' ? "%0A" : std::string(1, c);
  }
  return text;
}

std::string unescaped(std::string_view text) {
  std::string path;
  while (!text.empty()) {
    const auto code = text.substr(0, 3);
    const char c = code == "%25" ? '%' : code == "%20" ? ' ' : code == "%0A" ? '\n' : '\0';
    path += c != '\0' ? c : text[0];
    text.remove_prefix(c != '\0' ? 3 : 1);
  }
  return path;
}

// Takes the text before the next `end` off the front of `text`; returns false when there is none.
bool take(std::string_view& text, char end, std::string_view& taken) {
  const std::size_t at = text.find(end);
  if (at == std::string_view::npos) return false;
  taken = text.substr(0, at);
  text.remove_prefix(at + 1);
  return true;
}

template <typename Number>
bool parse_number(std::string_view text, int base, Number& number) {
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number, base);
  return error == std::errc() && stopped == end;
}

bool parse_digest(std::string_view hex, Digest128& digest) {
  return hex.size() == 32 && parse_number(hex.substr(0, 16), 16, digest.high) &&
         parse_number(hex.substr(16), 16, digest.low);
}

// Parses "v path", "s path object class_mark", or "a path step"; a class mark may contain blanks.
bool parse_step(std::string_view line, Recipe::Step& step) {
  std::string_view kind;
  if (!take(line, ' ', kind) || kind.size() != 1) return false;
  if (kind[0] == kValue) {
    step.path = unescaped(line);
    return !line.empty();
  }
  std::string_view path;
  if (!take(line, ' ', path)) return false;
  step.path = unescaped(path);
  if (kind[0] == kSameValue) {
    return !path.empty() && parse_number(line, 10, step.same_as.emplace());
  }
  std::string_view object;
  if (kind[0] != kSubmodule || !take(line, ' ', object)) return false;
  step.is_submodule = true;
  step.class_mark = line;
  return !path.empty() && parse_number(object, 10, step.object);
}

}  // namespace

Result<Recipe> Recipe::of(const Source& source, const Inventory& inventory) {
  Recipe recipe;
  recipe.code = source.digest;
  std::map<std::string, std::size_t> step_of;
  for (const Inventory::Attribute& attribute : inventory.attributes()) {
    if (attribute.is_interface) {
      return Status::invalid_argument("it calls submodule '" + attribute.path +
                                      "' through an interface");
    }
    if (!attribute.is_read) continue;
    const bool is_submodule = attribute.kind == AttributeKind::kObject;
    Step step{attribute.path, is_submodule, attribute.object, attribute.class_mark, {}};
    if (!attribute.first_path.empty()) {
      if (is_submodule) continue;
      step.same_as = step_of.at(attribute.first_path);
    } else if (!is_submodule) {
      step_of.emplace(attribute.path, recipe.steps.size());
    }
    recipe.steps.push_back(std::move(step));
  }
  return recipe;
}

std::string Recipe::text() const {
  std::string text(kRecipeTitle);
  text += '\n' + code.hex() + '\n';
  for (const Step& step : steps) {
    text += step.is_submodule ? kSubmodule : step.same_as.has_value() ? kSameValue : kValue;
    text += ' ' + escaped(step.path);
    if (step.same_as.has_value()) text += ' ' + std::to_string(*step.same_as);
    if (step.is_submodule) text += ' ' + std::to_string(step.object) + ' ' + step.class_mark;
    text += '\n';
  }
  return text;
}

Result<Recipe> Recipe::parse(std::string_view text) {
  const auto broken = [](const char* what) {
    return Status::corruption(std::string("a recipe in a lowered model has ") + what);
  };
  Recipe recipe;
  std::string_view line;
  if (!take(text, '\n', line) || line != kRecipeTitle) return broken("another format");
  if (!take(text, '\n', line) || !parse_digest(line, recipe.code)) return broken("no code digest");
  while (!text.empty()) {
    Step step;
    if (!take(text, '\n', line) || !parse_step(line, step)) return broken("a broken line");
    if (step.same_as.has_value() && *step.same_as >= recipe.steps.size()) {
      return broken("a step that is not there");
    }
    recipe.steps.push_back(std::move(step));
  }
  return recipe;
}

}  // namespace modcache::module
