// SPDX-License-Identifier: Apache-2.0
//
// The functions of a server that a response cache meets, without a server.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "triton_cache/triton_api.h"

struct TRITONSERVER_Error {
  modcache::triton_cache::ErrorCode code;
  std::string message;
};

struct TRITONSERVER_BufferAttributes {
  std::size_t size_bytes = 0;
  modcache::triton_cache::MemoryType type = modcache::triton_cache::MemoryType::kCpu;
};

struct TRITONCACHE_CacheEntry {
  struct Buffer {
    void* base = nullptr;
    std::size_t size_bytes = 0;
  };
  std::vector<Buffer> buffers;
  modcache::triton_cache::MemoryType type = modcache::triton_cache::MemoryType::kCpu;
};

// Copies between the responses of a request and the buffers of an entry.
struct TRITONCACHE_Allocator {
  std::vector<std::string> responses;
  bool fills_entry = false;
  bool fails = false;
};

namespace modcache::testing {

// What differs from a server where all goes well.
struct FakeServer {
  std::uint32_t cache_api_major = 0;
  std::uint32_t server_api_major = 1;
  std::uint32_t server_api_minor = 34;
  std::vector<std::string> log;
  int living = 0;  // errors and attributes that nobody deleted

  static FakeServer& instance() {
    static FakeServer server;
    return server;
  }
};

using triton_cache::ErrorCode;
using triton_cache::MemoryType;
using triton_cache::TritonApi;

inline TritonApi::Error fake_error(ErrorCode code, const char* message) {
  ++FakeServer::instance().living;
  return new TRITONSERVER_Error{code, message};
}

inline TritonApi::Error fake_copy(TRITONCACHE_Allocator* allocator, TritonApi::Entry* entry) {
  if (allocator->fails) return fake_error(ErrorCode::kInternal, "the server is out of memory");
  if (!allocator->fills_entry) allocator->responses.clear();
  for (std::size_t i = 0; i < entry->buffers.size(); ++i) {
    auto& [base, size_bytes] = entry->buffers[i];
    if (allocator->fills_entry) {
      std::memcpy(base, allocator->responses[i].data(), size_bytes);
    } else {
      allocator->responses.emplace_back(static_cast<const char*>(base), size_bytes);
    }
  }
  return nullptr;
}

inline void add_version_functions(TritonApi& api) {
  api.server_api_version = [](std::uint32_t* major, std::uint32_t* minor) {
    *major = FakeServer::instance().server_api_major;
    *minor = FakeServer::instance().server_api_minor;
    return TritonApi::Error{nullptr};
  };
  api.cache_api_version = [](std::uint32_t* major, std::uint32_t* minor) {
    *major = FakeServer::instance().cache_api_major;
    *minor = 1;
    return TritonApi::Error{nullptr};
  };
  api.log_message = [](triton_cache::ServerLogLevel, const char*, int, const char* message) {
    FakeServer::instance().log.emplace_back(message);
    return TritonApi::Error{nullptr};
  };
}

inline void add_attribute_functions(TritonApi& api) {
  api.attributes_new = [](TritonApi::Attributes** attributes) {
    ++FakeServer::instance().living;
    *attributes = new TRITONSERVER_BufferAttributes;
    return TritonApi::Error{nullptr};
  };
  api.attributes_delete = [](TritonApi::Attributes* attributes) {
    --FakeServer::instance().living;
    delete attributes;
    return TritonApi::Error{nullptr};
  };
  api.attributes_set_byte_size = [](TritonApi::Attributes* attributes, std::size_t size_bytes) {
    attributes->size_bytes = size_bytes;
    return TritonApi::Error{nullptr};
  };
  api.attributes_set_memory_type = [](TritonApi::Attributes* attributes, MemoryType type) {
    attributes->type = type;
    return TritonApi::Error{nullptr};
  };
  api.attributes_set_memory_type_id = [](TritonApi::Attributes*, std::int64_t) {
    return TritonApi::Error{nullptr};
  };
  api.attributes_byte_size = [](TritonApi::Attributes* attributes, std::size_t* size_bytes) {
    *size_bytes = attributes->size_bytes;
    return TritonApi::Error{nullptr};
  };
  api.attributes_memory_type = [](TritonApi::Attributes* attributes, MemoryType* type) {
    *type = attributes->type;
    return TritonApi::Error{nullptr};
  };
}

inline TritonApi fake_triton() {
  TritonApi api{};
  api.error_new = fake_error;
  api.error_delete = [](TritonApi::Error error) {
    --FakeServer::instance().living;
    delete error;
  };
  api.error_message = [](TritonApi::Error error) { return error->message.c_str(); };
  add_version_functions(api);
  add_attribute_functions(api);
  api.entry_buffer_count = [](TritonApi::Entry* entry, std::size_t* count) {
    *count = entry->buffers.size();
    return TritonApi::Error{nullptr};
  };
  api.entry_get_buffer = [](TritonApi::Entry* entry, std::size_t i, void** base,
                            TritonApi::Attributes* attributes) {
    *base = entry->buffers[i].base;
    *attributes = {entry->buffers[i].size_bytes, entry->type};
    return TritonApi::Error{nullptr};
  };
  api.entry_set_buffer = [](TritonApi::Entry* entry, std::size_t i, void* base,
                            TritonApi::Attributes*) {
    entry->buffers[i].base = base;
    return TritonApi::Error{nullptr};
  };
  api.entry_add_buffer = [](TritonApi::Entry* entry, void* base,
                            TritonApi::Attributes* attributes) {
    entry->buffers.push_back({base, attributes->size_bytes});
    return TritonApi::Error{nullptr};
  };
  api.copy = fake_copy;
  return api;
}

}  // namespace modcache::testing
