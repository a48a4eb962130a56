// SPDX-License-Identifier: Apache-2.0
//
// The part of Triton's C API (cache API 0.1, server API 1.x) that a response cache meets, and the
// server's functions as a table that is filled when the plug-in is loaded. Written from the
// description of the API: building the plug-in needs no Triton.
//
// An error is null when all went well. Whoever gets one deletes it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"

// Triton's own names, as its documents have them. NOLINTBEGIN(readability-identifier-naming)
extern "C" {
struct TRITONSERVER_Error;
struct TRITONSERVER_BufferAttributes;
struct TRITONCACHE_Allocator;  // copies between a response of the server and an entry's buffers
struct TRITONCACHE_CacheEntry;
struct TRITONCACHE_Cache;  // what a plug-in's Initialize gave
}
// NOLINTEND(readability-identifier-naming)

namespace modcache::triton_cache {

enum class ErrorCode : int { kInternal = 1, kNotFound = 2, kInvalidArgument = 3, kUnsupported = 5 };
enum class MemoryType : int { kCpu = 0, kCpuPinned = 1, kGpu = 2 };
enum class ServerLogLevel : int { kInfo = 0, kWarning = 1, kError = 2 };

struct TritonApi {
  using Error = TRITONSERVER_Error*;
  using Attributes = TRITONSERVER_BufferAttributes;
  using Entry = TRITONCACHE_CacheEntry;

  Error (*error_new)(ErrorCode code, const char* message);
  void (*error_delete)(Error error);
  const char* (*error_message)(Error error);
  Error (*server_api_version)(std::uint32_t* major, std::uint32_t* minor);
  Error (*cache_api_version)(std::uint32_t* major, std::uint32_t* minor);
  Error (*log_message)(ServerLogLevel level, const char* file, int line, const char* message);
  Error (*attributes_new)(Attributes** attributes);
  Error (*attributes_delete)(Attributes* attributes);
  Error (*attributes_set_byte_size)(Attributes* attributes, std::size_t byte_size);
  Error (*attributes_set_memory_type)(Attributes* attributes, MemoryType type);
  Error (*attributes_set_memory_type_id)(Attributes* attributes, std::int64_t id);
  Error (*attributes_byte_size)(Attributes* attributes, std::size_t* byte_size);
  Error (*attributes_memory_type)(Attributes* attributes, MemoryType* type);
  // An entry on its way into the cache knows the size of each buffer; its bytes come by copy(), to
  // where entry_set_buffer() put them. On the way out entry_add_buffer() adds them, and copy()
  // makes a response of them. An entry owns no buffer.
  Error (*entry_buffer_count)(Entry* entry, std::size_t* count);
  Error (*entry_get_buffer)(Entry* entry, std::size_t index, void** base, Attributes* attributes);
  Error (*entry_set_buffer)(Entry* entry, std::size_t index, void* base, Attributes* attributes);
  Error (*entry_add_buffer)(Entry* entry, void* base, Attributes* attributes);
  Error (*copy)(TRITONCACHE_Allocator* allocator, Entry* entry);
};

// The functions of the server that loaded this library. kNotFound names one that is missing.
Result<TritonApi> find_triton_api();

}  // namespace modcache::triton_cache
