// SPDX-License-Identifier: Apache-2.0
//
// fill_directory DIR: a program that stores, for the tests of the command line, which need neither
// Python nor torch. Settings of the environment say how large the directory may be and what is
// worth keeping. Each line of standard input is a JSON object that says what to do; "ok", or what
// failed, answers it. It keeps the directory open until its input ends.
//
//   {"do": "put", "scope": S, "key": K, "shape": [3, 256], "count": 1, ...}   float32; a count
//   above
//                                                      1 stores the keys K0, K1, ...
//   {"do": "find", "scope": S, "key": K, "count": 1, ...}    fails unless all of them are there
//   {"do": "note", "about": TEXT, "text": TEXT}
//   {"do": "count", "scope": S, "days_ago": 0, "hits_disk": 3, "misses": 1, ...}   what a process
//                                                      that is there until the input ends counted
//   {"do": "flush"}
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cache/context.h"
#include "cache/entry_header.h"
#include "cache/settings.h"
#include "cache/stats.h"
#include "fs/posix_file_system.h"
#include "policy/policy.h"
#include "store/counters/counter_file.h"
#include "store/directory/directory.h"
#include "store/directory/notes.h"
#include "store/store.h"
#include "tensor/value_header.h"

namespace modcache::testing {
namespace {

using Json = nlohmann::json;

std::string text(const Json& line, const char* name, const char* otherwise = "") {
  return line.value(name, otherwise);
}

cache::ContextPtr context_of(const Json& line) {
  const std::string name_space = text(line, "namespace");
  const std::string scope = text(line, "scope", "scope");
  const std::string method = text(line, "method", "forward");
  const std::string arguments = text(line, "arguments");
  const auto form = text(line, "form", "whole") == "row" ? cache::Form::kRow : cache::Form::kWhole;
  return cache::make_context({name_space, scope, method, form, arguments, ""});
}

// A float32 tensor of zeros, computed from one of the same shape.
Status put(store::Store& store, const Json& line) {
  const auto shape = line.value("shape", std::vector<std::int64_t>{4});
  tensor::ValueHeader header;
  header.tensors = {{6, 6, true, shape}};
  std::size_t size_bytes = 4;
  for (const std::int64_t size : shape) size_bytes *= static_cast<std::size_t>(size);
  const std::string packed = line.value(
      "header", cache::pack_header("(float32[1,4])", tensor::encode_value_header(header)));
  const SharedBytes payload = share_bytes(std::string(size_bytes, '\1'));
  const auto context = context_of(line);
  const std::string key = text(line, "key", "key");
  const int count = line.value("count", 1);
  for (int i = 0; i < count; ++i) {
    const std::string name = count == 1 ? key : key + std::to_string(i);
    auto sequence = store.put({{*context, name}, packed, payload, line.value("run_us", 1500)});
    if (!sequence.is_ok()) return sequence.status();
  }
  return Status::ok();
}

Status find(store::Store& store, const Json& line) {
  const auto context = context_of(line);
  const std::string key = text(line, "key", "key");
  const int count = line.value("count", 1);
  for (int i = 0; i < count; ++i) {
    const Status status =
        store.find({*context, count == 1 ? key : key + std::to_string(i)}).status();
    if (!status.is_ok()) return status;
  }
  return Status::ok();
}

// A process counts in one file after the other, since each has few slots.
Result<store::CounterSlot*> slot_of(const store::Directory& directory, const std::string& scope,
                                    std::int32_t day) {
  static std::vector<std::unique_ptr<store::CounterFile>> files;
  for (const auto& file : files) {
    if (auto* const slot = file->slot_of(scope, day)) return slot;
  }
  MODCACHE_ASSIGN_OR_RETURN(auto file, store::CounterFile::create(directory));
  files.push_back(std::move(file));
  return files.back()->slot_of(scope, day);
}

Status count(const store::Directory& directory, const Json& line) {
  const std::int32_t day = store::day_of(now_us()) - line.value("days_ago", 0);
  MODCACHE_ASSIGN_OR_RETURN(auto* const slot, slot_of(directory, text(line, "scope"), day));
  for (std::size_t i = 0; i < static_cast<std::size_t>(cache::Counter::kCount); ++i) {
    const std::string name(cache::counter_name(static_cast<cache::Counter>(i)));
    (*slot)[i].fetch_add(line.value(name, std::int64_t{0}), std::memory_order_relaxed);
  }
  return Status::ok();
}

Status obey(store::Store& store, const store::Directory& directory, const Json& line) {
  const std::string command = text(line, "do");
  if (command == "put") return put(store, line);
  if (command == "find") return find(store, line);
  if (command == "flush") return store.flush();
  if (command == "count") return count(directory, line);
  if (command == "note") return keep_note(directory, text(line, "about"), text(line, "text"));
  return Status::invalid_argument("'" + command + "' is nothing that this program can do");
}

int run(const std::string& path) {
  std::vector<std::string> warnings;
  const cache::Settings settings = cache::settings_from_environment(warnings);
  store::StoreOptions options;
  options.directory = path;
  options.disk_budget_bytes = settings.disk_bytes;
  options.make_policy = [kind = settings.policy](void* shared_state) {
    return policy::make_policy(kind, shared_state);
  };
  options.patience_ms = 10'000;
  auto opened = store::Store::open(fs::posix_file_system(), std::move(options));
  if (!opened.is_ok()) {
    std::cerr << opened.status().message() << '\n';
    return 1;
  }
  const store::Directory directory(fs::posix_file_system(), path);
  std::string line;
  while (std::getline(std::cin, line)) {
    const Json parsed = Json::parse(line, nullptr, false);
    const Status status = parsed.is_object() ? obey(*opened.value(), directory, parsed)
                                             : Status::invalid_argument("this is no JSON object");
    std::cout << (status.is_ok() ? "ok" : status.message()) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace modcache::testing

int main(int argc, char** argv) {
  if (argc == 2) return modcache::testing::run(argv[1]);
  std::cerr << "usage: fill_directory DIR\n";
  return 2;
}
