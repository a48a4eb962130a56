// SPDX-License-Identifier: Apache-2.0
#include "triton_cache/entry_buffers.h"

#include <string>

namespace modcache::triton_cache {
namespace {

// Facts about one buffer, which the server fills in or copies.
class BufferAttributes {
 public:
  explicit BufferAttributes(const TritonApi& api) : api_(api) {}
  ~BufferAttributes() {
    if (attributes_ != nullptr) {
      const Status ignored = status_of(api_, api_.attributes_delete(attributes_));
      (void)ignored;
    }
  }
  BufferAttributes(const BufferAttributes&) = delete;
  BufferAttributes& operator=(const BufferAttributes&) = delete;

  Status make() { return status_of(api_, api_.attributes_new(&attributes_)); }
  TritonApi::Attributes* get() const { return attributes_; }

 private:
  const TritonApi& api_;
  TritonApi::Attributes* attributes_ = nullptr;
};

Result<std::size_t> size_asked_for(const TritonApi& api, TritonApi::Entry* entry,
                                   std::size_t index) {
  BufferAttributes attributes(api);
  MODCACHE_RETURN_IF_ERROR(attributes.make());
  void* base = nullptr;  // Null: the bytes come by copy().
  MODCACHE_RETURN_IF_ERROR(
      status_of(api, api.entry_get_buffer(entry, index, &base, attributes.get())));
  std::size_t size_bytes = 0;
  MODCACHE_RETURN_IF_ERROR(status_of(api, api.attributes_byte_size(attributes.get(), &size_bytes)));
  MemoryType type = MemoryType::kCpu;
  MODCACHE_RETURN_IF_ERROR(status_of(api, api.attributes_memory_type(attributes.get(), &type)));
  if (type != MemoryType::kCpu && type != MemoryType::kCpuPinned) {
    return Status::invalid_argument("a response lies in the memory of a GPU");
  }
  return size_bytes;
}

}  // namespace

Status status_of(const TritonApi& api, TritonApi::Error error) {
  if (error == nullptr) return Status::ok();
  const char* const message = api.error_message(error);
  auto status = Status::io_error(message != nullptr ? message : "an error without a message");
  api.error_delete(error);
  return status;
}

Result<std::vector<std::size_t>> sizes_asked_for(const TritonApi& api, TritonApi::Entry* entry) {
  std::size_t count = 0;
  MODCACHE_RETURN_IF_ERROR(status_of(api, api.entry_buffer_count(entry, &count)));
  if (count > Response::kMostBuffers) {
    return Status::invalid_argument("a response has " + std::to_string(count) + " buffers");
  }
  std::vector<std::size_t> sizes_bytes;
  sizes_bytes.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    MODCACHE_ASSIGN_OR_RETURN(const auto size_bytes, size_asked_for(api, entry, i));
    sizes_bytes.push_back(size_bytes);
  }
  return sizes_bytes;
}

Status fill(const TritonApi& api, Response& response, TritonApi::Entry* entry,
            TRITONCACHE_Allocator* allocator) {
  for (std::size_t i = 0; i < response.buffers(); ++i) {
    // The entry has the attributes already.
    MODCACHE_RETURN_IF_ERROR(status_of(
        api, api.entry_set_buffer(entry, i, response.writable_buffer(i), /*attributes=*/nullptr)));
  }
  return status_of(api, api.copy(allocator, entry));
}

Status copy_out(const TritonApi& api, const Response& response, TritonApi::Entry* entry,
                TRITONCACHE_Allocator* allocator) {
  BufferAttributes attributes(api);
  MODCACHE_RETURN_IF_ERROR(attributes.make());
  MODCACHE_RETURN_IF_ERROR(
      status_of(api, api.attributes_set_memory_type(attributes.get(), MemoryType::kCpu)));
  MODCACHE_RETURN_IF_ERROR(status_of(api, api.attributes_set_memory_type_id(attributes.get(), 0)));
  for (std::size_t i = 0; i < response.buffers(); ++i) {
    const std::string_view buffer = response.buffer(i);
    MODCACHE_RETURN_IF_ERROR(
        status_of(api, api.attributes_set_byte_size(attributes.get(), buffer.size())));
    // The server only reads it.
    void* const base = const_cast<char*>(buffer.data());
    MODCACHE_RETURN_IF_ERROR(status_of(api, api.entry_add_buffer(entry, base, attributes.get())));
  }
  return status_of(api, api.copy(allocator, entry));
}

}  // namespace modcache::triton_cache
