// Memory: of the devices, in blocks that a stream owns and gets back when they are freed; what streams did to it; and
// page-locked memory of the host, to which copies land when the host has waited for them.
//
// A race is two accesses to the same bytes, one of them a write, of which neither stream has seen the other's.
#pragma once

#include "clocks.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <memory>

namespace simulated {

// What is launched: its name, and where in Python, if races are looked for.
struct Origin {
  std::string name;
  std::shared_ptr<torch::CapturedTraceback> where;

  static std::shared_ptr<Origin> here(std::string name);
};

// Bytes of a block, and who touched them when.
struct Access {
  size_t begin, end;
  int stream;
  uint32_t tick;
  bool writes;
  std::shared_ptr<Origin> origin;
};

using History = std::vector<Access>;

// Check an access against those before, and keep it. Needs the clocks' mutex.
void note(History& history, Access access);
// Whether races are looked for; a race is noted, and changes nothing.
bool& looks_for_races();
// What was found since the last call, each race once: fields of a line each, see ``races.py``.
std::vector<std::string> take_races();

struct Block {
  char* data;
  size_t size;
  size_t requested;
  c10::DeviceIndex device;
  int home;                                         // the stream that was current when it was made
  std::map<int, uint32_t> users;                    // other streams by record_stream, and their last tick
  History history;                                  // survives free and reuse
};

c10::DeviceAllocator* allocator();
// The block of a device tensor's storage; null if it has no memory.
Block* block_of(const c10::Storage& storage);
// Note what a launch does with a tensor's bytes. Needs the clocks' mutex.
void note_access(const at::Tensor& tensor, const Launch& launch, bool writes, const std::shared_ptr<Origin>& origin);
// From the first to behind the last byte of a tensor in its storage.
std::pair<size_t, size_t> bytes_of(const at::Tensor& tensor);

at::HostAllocator* host_allocator();
bool is_pinned(const void* data);
// Fill bytes of pinned memory with NaN, until a host has seen ``launch``; then with ``value``. Needs the clocks' mutex.
void land_later(char* target, const char* value, size_t size, const Launch& launch);
// Have what a moment includes land. Needs the clocks' mutex.
void land(const Moment& moment);

} // namespace simulated
