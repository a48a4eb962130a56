// SPDX-License-Identifier: Apache-2.0
#include "triton_cache/triton_api.h"

#include <dlfcn.h>

#include <string>

namespace modcache::triton_cache {
namespace {

// Linking to libtritonserver.so would not do: packages of Triton give it other names. It is in the
// global scope of the program `tritonserver`, and in that of a host that loaded it by itself it is
// found by its name.
void* find_function(const char* name) {
  if (void* const found = dlsym(RTLD_DEFAULT, name)) return found;
  static void* const library = dlopen("libtritonserver.so", RTLD_NOW | RTLD_NOLOAD);
  return library != nullptr ? dlsym(library, name) : nullptr;
}

class Finder {
 public:
  template <typename Function>
  void find(const char* name, Function& function) {
    void* const found = find_function(name);
    if (found == nullptr && missing_.empty()) missing_ = name;
    function = reinterpret_cast<Function>(found);
  }

  Status status() const {
    if (missing_.empty()) return Status::ok();
    return Status::not_found("the process has no function '" + missing_ +
                             "': this library is a cache of Triton Inference Server, which loads "
                             "it by --cache-directory and --cache-config modcache,...");
  }

 private:
  std::string missing_;
};

}  // namespace

Result<TritonApi> find_triton_api() {
  TritonApi api{};
  Finder finder;
  finder.find("TRITONSERVER_ErrorNew", api.error_new);
  finder.find("TRITONSERVER_ErrorDelete", api.error_delete);
  finder.find("TRITONSERVER_ErrorMessage", api.error_message);
  finder.find("TRITONSERVER_ApiVersion", api.server_api_version);
  finder.find("TRITONCACHE_ApiVersion", api.cache_api_version);
  finder.find("TRITONSERVER_LogMessage", api.log_message);
  finder.find("TRITONSERVER_BufferAttributesNew", api.attributes_new);
  finder.find("TRITONSERVER_BufferAttributesDelete", api.attributes_delete);
  finder.find("TRITONSERVER_BufferAttributesSetByteSize", api.attributes_set_byte_size);
  finder.find("TRITONSERVER_BufferAttributesSetMemoryType", api.attributes_set_memory_type);
  finder.find("TRITONSERVER_BufferAttributesSetMemoryTypeId", api.attributes_set_memory_type_id);
  finder.find("TRITONSERVER_BufferAttributesByteSize", api.attributes_byte_size);
  finder.find("TRITONSERVER_BufferAttributesMemoryType", api.attributes_memory_type);
  finder.find("TRITONCACHE_CacheEntryBufferCount", api.entry_buffer_count);
  finder.find("TRITONCACHE_CacheEntryGetBuffer", api.entry_get_buffer);
  finder.find("TRITONCACHE_CacheEntrySetBuffer", api.entry_set_buffer);
  finder.find("TRITONCACHE_CacheEntryAddBuffer", api.entry_add_buffer);
  finder.find("TRITONCACHE_Copy", api.copy);
  MODCACHE_RETURN_IF_ERROR(finder.status());
  return api;
}

}  // namespace modcache::triton_cache
