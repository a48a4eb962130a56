// SPDX-License-Identifier: Apache-2.0
#include "module/code_text.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>

namespace modcache::module {
namespace {

namespace jit = torch::jit;

constexpr std::string_view kLocal = "modcache_local_";

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_';
}

void mark_local(jit::Value& value, std::uint64_t& count) {
  // A value without a name is printed within the expression that uses it, and must stay so.
  if (value.hasDebugName()) value.setDebugName(std::string(kLocal) + std::to_string(count++));
}

void mark_locals(jit::Block& block, std::uint64_t& count) {
  for (jit::Value* input : block.inputs()) mark_local(*input, count);
  for (jit::Node* node : block.nodes()) {
    for (jit::Value* output : node->outputs()) mark_local(*output, count);
    for (jit::Block* inner : node->blocks()) mark_locals(*inner, count);
    // The code of a fork is an attribute; a copied graph has its own copy of it.
    for (const c10::Symbol name : node->attributeNames()) {
      if (node->kindOf(name) == jit::AttributeKind::g) mark_locals(*node->g(name)->block(), count);
    }
  }
}

// A module that was saved has casts to a wider type (int to Optional[int]) where the one that was
// compiled has none. They do nothing.
void drop_upcasts(jit::Block& block) {
  for (auto node = block.nodes().begin(); node != block.nodes().end(); ++node) {
    for (jit::Block* inner : node->blocks()) drop_upcasts(*inner);
    if (node->kind() != c10::prim::unchecked_cast) continue;
    if (!node->input()->type()->isSubtypeOf(*node->output()->type())) continue;
    node->output()->replaceAllUsesWith(node->input());
    node.destroyCurrent();
  }
}

bool is_local(std::string_view word) {
  std::string_view number;
  if (word.substr(0, kLocal.size()) == kLocal) {
    number = word.substr(kLocal.size());
  } else if (word.substr(0, 1) == "_") {
    number = word.substr(1);
  }
  return !number.empty() && std::all_of(number.begin(), number.end(), is_digit);
}

// The end of the string literal that begins at `start`.
std::size_t end_of_literal(const std::string& text, std::size_t start) {
  std::size_t end = start + 1;
  while (end < text.size() && text[end] != text[start]) end += text[end] == '\\' ? 2 : 1;
  return std::min(end + 1, text.size());
}

}  // namespace

std::string text_of(const jit::GraphFunction& function, std::vector<at::IValue>& constants,
                    jit::PrintDepsTable& dependencies) {
  std::shared_ptr<jit::Graph> graph = function.graph()->copy();
  drop_upcasts(*graph->block());
  std::uint64_t count = 0;
  mark_locals(*graph->block(), count);
  jit::GraphFunction marked(function.qualname(), std::move(graph), nullptr);
  marked.setSchema(function.getSchema());
  jit::PythonPrint printer(constants, dependencies);
  printer.printMethod(marked);
  return with_numbered_locals(printer.str());
}

std::string with_numbered_locals(const std::string& text) {
  std::unordered_map<std::string_view, std::size_t> numbers;
  std::string out;
  out.reserve(text.size());
  const std::string_view whole = text;
  for (std::size_t start = 0; start < text.size();) {
    std::size_t end = start + 1;
    if (text[start] == '"' || text[start] == '\'') {
      end = end_of_literal(text, start);
    } else if (is_word_char(text[start])) {
      while (end < text.size() && is_word_char(text[end])) ++end;
    }
    const std::string_view word = whole.substr(start, end - start);
    const bool is_member = start > 0 && text[start - 1] == '.';
    if (is_local(word) && !is_member) {
      out += '%';  // no character of TorchScript's names
      out += std::to_string(numbers.try_emplace(word, numbers.size()).first->second);
    } else {
      out += word;
    }
    start = end;
  }
  return out;
}

}  // namespace modcache::module
