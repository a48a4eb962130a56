// SPDX-License-Identifier: Apache-2.0
//
// What Triton Inference Server's PyTorch backend calls of a library that a model's config.pbtxt
// names:
//     parameters { key: "MODEL_INIT_LIBRARY"
//                  value { string_value: "/path/to/libmodcache.so" } }
// The model's settings then come from `modcache.json` in the directory of its version, beside
// model.pt2 (model_settings.h).
//
// As the backend's sources have it (src/pt2/model_state.cc, 2026): it dlopens the library with
// RTLD_NOW | RTLD_LOCAL and calls init once for each model, before the model's package is loaded,
// with the directory of the version and the device of the first instance, -1 for the CPU. A null
// handle is no failure there, and an exception would leave the backend's hands. When the model is
// unloaded it passes the handle, null or not, to fini if that is exported, and calls dlclose. The
// review of that change speaks of `release` in the place of `fini`, so the library has both.
//
// TorchScript models have no such parameter: for these the server is started with LD_PRELOAD, and
// the environment has the settings.
#pragma once

extern "C" {

// Applies the model's settings. Any thread; never throws. Never null unless memory ran out.
// `device_index` is of no concern: results are cached wherever they were computed.
__attribute__((visibility("default"))) void* triton_pytorch_model_init(const char* model_dir,
                                                                       int device_index);

// Once for each handle; null is ignored. What the model stored is safe afterwards. Models that are
// still loaded go on being cached.
__attribute__((visibility("default"))) void triton_pytorch_model_fini(void* handle);
__attribute__((visibility("default"))) void triton_pytorch_model_release(void* handle);
}
