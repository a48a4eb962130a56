// SPDX-License-Identifier: Apache-2.0
//
// The buffers of Triton's cache entries. Errors of the server's functions become a Status.
#pragma once

#include <cstddef>
#include <vector>

#include "base/result.h"
#include "triton_cache/response.h"
#include "triton_cache/triton_api.h"

namespace modcache::triton_cache {

// Takes over an error of the server's; ok for null.
Status status_of(const TritonApi& api, TritonApi::Error error);

// The sizes of the buffers that an entry asks for. kInvalidArgument: they are not for the host's
// memory, or too many.
Result<std::vector<std::size_t>> sizes_asked_for(const TritonApi& api, TritonApi::Entry* entry);

// Has the server fill the response's buffers.
Status fill(const TritonApi& api, Response& response, TritonApi::Entry* entry,
            TRITONCACHE_Allocator* allocator);

// Has the server make a response of these buffers, which it copies.
Status copy_out(const TritonApi& api, const Response& response, TritonApi::Entry* entry,
                TRITONCACHE_Allocator* allocator);

}  // namespace modcache::triton_cache
