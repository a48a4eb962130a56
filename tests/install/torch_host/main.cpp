// SPDX-License-Identifier: Apache-2.0
//
// A host that does what its arguments say, step by step, and prints a line for each:
//     torch_host open /path/libmodcache.so load model.pt run key stat misses
// A step that throws prints its error, and the next one follows.
#include <ATen/ATen.h>
#include <dlfcn.h>
#include <modcache/modcache.h>
#include <torch/csrc/jit/serialization/import.h>

#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

extern "C" int add_row(const char* path);

namespace {

using Words = std::vector<std::string>;

struct Host {
  std::vector<void*> libraries;
  std::vector<void*> handles;  // of triton_pytorch_model_init
  torch::jit::Module model;
  std::vector<modcache::Cache> caches;
  std::vector<std::unique_ptr<modcache::CacheGuard>> guards;
  ~Host() {
    while (!guards.empty()) guards.pop_back();  // the last one first
  }
};

std::string open(Host& host, const Words& words) {
  void* library = dlopen(words[0].c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  host.libraries.push_back(library);
  return "opened";
}

std::string close(Host& host, const Words&) {
  if (dlclose(host.libraries.back()) != 0) throw std::runtime_error(dlerror());
  host.libraries.pop_back();
  return "closed";
}

// As Triton's PyTorch backend does: of the library that it opened for the model.
template <typename Function>
Function* symbol(const Host& host, const char* name) {
  void* found = dlsym(host.libraries.back(), name);
  if (found == nullptr) throw std::runtime_error(dlerror());
  return reinterpret_cast<Function*>(found);
}

std::string init(Host& host, const Words& words) {
  auto* function = symbol<void*(const char*, int)>(host, "triton_pytorch_model_init");
  host.handles.push_back(function(words[0].c_str(), -1));
  return host.handles.back() != nullptr ? "handle" : "null";
}

std::string fini(Host& host, const Words& words) {
  symbol<void(void*)>(host, words[0].c_str())(host.handles.back());
  host.handles.pop_back();
  return "unloaded";
}

std::string text_of(const at::Tensor& tensor) {
  std::string text;
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    text += (i == 0 ? "" : " ") + std::to_string(tensor.flatten()[i].item<double>());
  }
  return text;
}

std::string load(Host& host, const Words& words) {
  host.model = torch::jit::load(words[0]);
  return "loaded";
}

// From here on the frozen copy is the model.
std::string freeze(Host& host, const Words&) {
  host.model = modcache::freeze(host.model);
  return "frozen";
}

std::string save(Host& host, const Words& words) {
  host.model.save(words[0]);
  return "saved";
}

// Through the model, which calls the operator itself.
std::string run(Host& host, const Words& words) {
  return text_of(host.model.forward({at::full({1, 4}, 1.0), words[0]}).toTensor());
}

torch::jit::Module encoder(const Host& host) { return host.model.attr("encoder").toModule(); }

std::string one(Host& host, const Words& words) {
  return text_of(modcache::lookup_or_run(encoder(host), at::full({1, 4}, 1.0), words[0]));
}

std::string rows(Host& host, const Words& words) {
  const std::vector<std::string> keys(words.begin(), words.end());
  return text_of(modcache::lookup_or_run(encoder(host), at::full({2, 4}, 1.0), keys));
}

std::string ids(Host& host, const Words& words) {
  const std::vector<std::int64_t> numbers{std::stol(words[0]), std::stol(words[1])};
  const at::Tensor tensor = at::tensor(numbers);
  return text_of(modcache::lookup_or_run(encoder(host), at::full({2, 4}, 1.0), tensor));
}

// The batch says that its rows have a length of their own, which no tensor of the input has.
std::string masked(Host& host, const Words& words) {
  modcache::CallOptions options;
  options.mask = at::ones({2, 3});
  const std::vector<std::string> keys(words.begin(), words.end());
  return text_of(modcache::lookup_or_run(encoder(host), at::full({2, 4}, 1.0), keys, options));
}

std::string scoped(Host& host, const Words& words) {
  const modcache::CallOptions options{words[0], "forward"};
  const c10::IValue input = c10::ivalue::Tuple::create({at::full({1, 4}, 1.0)});
  return text_of(modcache::lookup_or_run_any(encoder(host), input, words[1], options).toTensor());
}

std::string under(Host& host, const Words& words) {
  const modcache::ModeGuard guard(words[0]);
  return modcache::mode() + ": " + one(host, {words[1]});
}

// Of caches of the host's own: makes one, enters one by its number, leaves the last.
std::string make_cache(Host& host, const Words& words) {
  host.caches.emplace_back(std::map<std::string, std::string>{{words[0], words[1]}});
  return "made";
}

std::string enter(Host& host, const Words& words) {
  const modcache::Cache copy = host.caches.at(std::stoul(words[0]));
  host.guards.push_back(std::make_unique<modcache::CacheGuard>(copy));
  return "entered";
}

std::string leave(Host& host, const Words&) {
  host.guards.pop_back();
  return "left";
}

std::string forget_caches(Host& host, const Words&) {
  host.caches.clear();
  return "forgotten";
}

// In a thread of the host, which has no guard.
std::string in_a_thread(Host& host, const Words& words) {
  std::string text;
  std::thread([&] { text = one(host, words); }).join();
  return text;
}

std::string configure(Host&, const Words& words) {
  modcache::configure({{words[0], words[1]}});
  return "configured";
}

std::string own_database(Host&, const Words& words) {
  return std::to_string(add_row(words[0].c_str())) + " rows";
}

struct Step {
  std::size_t words;
  std::function<std::string(Host&, const Words&)> act;
};

const std::map<std::string, Step>& steps() {
  static const auto* const all = new std::map<std::string, Step>{
      {"open", {1, open}},
      {"close", {0, close}},
      {"init", {1, init}},
      {"fini", {1, fini}},
      {"load", {1, load}},
      {"freeze", {0, freeze}},
      {"save", {1, save}},
      {"run", {1, run}},
      {"one", {1, one}},
      {"rows", {2, rows}},
      {"ids", {2, ids}},
      {"masked", {2, masked}},
      {"scoped", {2, scoped}},
      {"under", {2, under}},
      {"cache", {2, make_cache}},
      {"enter", {1, enter}},
      {"leave", {0, leave}},
      {"forget-caches", {0, forget_caches}},
      {"in-a-thread", {1, in_a_thread}},
      {"configure", {2, configure}},
      {"own-database", {1, own_database}},
      {"is-loaded", {0, [](Host&, const Words&) { return modcache::is_loaded() ? "yes" : "no"; }}},
      {"mode", {0, [](Host&, const Words&) { return modcache::mode(); }}},
      {"set-mode", {1, [](Host&, const Words& w) { return modcache::set_mode(w[0]), "set"; }}},
      {"flush", {0, [](Host&, const Words&) { return modcache::flush(), "flushed"; }}},
      {"reset", {0, [](Host&, const Words&) { return modcache::reset_stats(), "reset"; }}},
      {"clear", {0, [](Host&, const Words&) { return std::to_string(modcache::clear()); }}},
      {"stat",
       {1, [](Host&, const Words& w) { return std::to_string(modcache::stats().at(w[0])); }}},
      {"setting", {1, [](Host&, const Words& w) { return modcache::settings().at(w[0]); }}},
      {"contains",
       {2, [](Host&, const Words& w) { return modcache::contains(w[0], w[1]) ? "yes" : "no"; }}},
      {"fingerprint", {0, [](Host& h, const Words&) { return modcache::fingerprint(encoder(h)); }}},
  };
  return *all;
}

}  // namespace

int main(int argc, char** argv) {
  const Words arguments(argv + 1, argv + argc);
  Host host;
  for (std::size_t i = 0; i < arguments.size();) {
    const Step& step = steps().at(arguments[i]);
    const auto words = arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1;
    i += 1 + step.words;
    try {
      std::puts(
          step.act(host, Words(words, words + static_cast<std::ptrdiff_t>(step.words))).c_str());
    } catch (const c10::Error& error) {
      std::printf("error: %s\n", error.what_without_backtrace());
    } catch (const std::exception& error) {
      std::printf("error: %s\n", error.what());
    }
  }
}
