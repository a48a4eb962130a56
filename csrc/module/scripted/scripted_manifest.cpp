// SPDX-License-Identifier: Apache-2.0
#include "module/scripted/scripted_manifest.h"

#include <torch/version.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "module/call/manifest.h"
#include "module/code/source.h"
#include "module/identity/identity.h"

namespace modcache::module {
namespace {

void append_json(std::string& out, const std::string& text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += "\\u00" + hex_of({&c, 1});
    } else {
      out += c;
    }
  }
  out += '"';
}

void append_member(std::string& out, const char* name, const std::string& text) {
  append_json(out, name);
  out += ':';
  append_json(out, text);
  out += ',';
}

// {"name":"16 hexadecimal digits",...}
class DigestsText {
 public:
  void add(const std::string& name, const Digest128& digest) {
    if (text_.size() > 1) text_ += ',';
    append_json(text_, name);
    text_ += ':';
    append_json(text_, digest.hex().substr(0, 16));
  }
  std::string finish() { return text_ + '}'; }

 private:
  std::string text_ = "{";
};

void append_pieces(std::string& out, const Identity::Pieces& pieces) {
  DigestsText code;
  for (const auto& [name, digest] : pieces.functions) code.add(name, digest);
  DigestsText tensors;
  DigestsText attributes;
  for (const auto& attribute : pieces.attributes) {
    (attribute.is_tensor ? tensors : attributes).add(attribute.path, attribute.digest);
  }
  out += ",\"code\":" + code.finish();
  out += ",\"attributes\":" + attributes.finish();
  const std::string of_tensors = tensors.finish();
  if (out.size() + of_tensors.size() < kMostManifestBytes) out += ",\"tensors\":" + of_tensors;
}

}  // namespace

std::string describe_scripted(const ObjectPtr& module, const std::string& scope,
                              const std::string& method, bool with_weights) {
  const std::string class_name = class_name_of(*module);
  std::string text = "{\"format\":1,";
  append_member(text, "face", "torchscript");
  append_member(text, "scope", scope);
  append_member(text, "class", class_name);
  append_member(text, "method", method);
  append_member(text, "torch", TORCH_VERSION);
  text += "\"created_us\":" + std::to_string(now_us()) + ",\"pid\":" + std::to_string(::getpid());
  if (with_weights) {
    if (const auto pieces = identity_of(module, method)->pieces(module)) {
      append_pieces(text, *pieces);
    }
  }
  return text + '}';
}

}  // namespace modcache::module
