#include "memory.h"

#include <c10/core/impl/alloc_cpu.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace simulated {

namespace {

// A copy under way.
struct Landing {
  char* begin;
  std::vector<char> bytes;
  int stream;
  uint32_t tick;
};

std::vector<Landing>& landings() {
  static auto* made = new std::vector<Landing>();
  return *made;
}

void free_pinned(void* data);

class Pinned : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t n) override {
    if (n == 0) {
      return {nullptr, nullptr, &free_pinned, c10::Device(c10::kCPU)};
    }
    void* data = c10::alloc_cpu(n);
    std::lock_guard<std::mutex> lock(clocks().mutex);
    sizes_[static_cast<char*>(data)] = n;
    stats_.active_requests.increase(1);
    stats_.active_bytes.increase(n);
    stats_.allocations.increase(1);
    stats_.allocated_bytes.increase(n);
    return {data, data, &free_pinned, c10::Device(c10::kCPU)};
  }

  void free(char* data) {
    std::lock_guard<std::mutex> lock(clocks().mutex);
    size_t size = sizes_.at(data);
    auto is_within = [&](const Landing& one) { return data <= one.begin && one.begin < data + size; };
    landings().erase(std::remove_if(landings().begin(), landings().end(), is_within), landings().end());
    sizes_.erase(data);
    stats_.active_requests.decrease(1);
    stats_.active_bytes.decrease(size);
    stats_.allocations.decrease(1);
    stats_.allocated_bytes.decrease(size);
    c10::free_cpu(data);
  }

  bool has(const char* data) {
    std::lock_guard<std::mutex> lock(clocks().mutex);
    auto after = sizes_.upper_bound(const_cast<char*>(data));
    return after != sizes_.begin() && data < std::prev(after)->first + std::prev(after)->second;
  }

  bool record_event(void* /*ptr*/, void* /*ctx*/, c10::Stream /*stream*/) override {
    return true;
  }

  void empty_cache() override {}

  at::HostStats get_stats() override {
    std::lock_guard<std::mutex> lock(clocks().mutex);
    return stats_;
  }

  void reset_accumulated_stats() override {
    std::lock_guard<std::mutex> lock(clocks().mutex);
    for (auto* stat : each()) {
      stat->reset_accumulated();
    }
  }

  void reset_peak_stats() override {
    std::lock_guard<std::mutex> lock(clocks().mutex);
    for (auto* stat : each()) {
      stat->reset_peak();
    }
  }

  void copy_data(void* dest, const void* src, std::size_t count) const override {
    default_copy_data(dest, src, count);
  }

 private:
  std::array<c10::CachingAllocator::Stat*, 4> each() {
    return {&stats_.active_requests, &stats_.active_bytes, &stats_.allocations, &stats_.allocated_bytes};
  }

  std::map<char*, size_t> sizes_;
  at::HostStats stats_;
};

Pinned& pinned() {
  static auto* made = new Pinned();
  return *made;
}

void free_pinned(void* data) {
  if (data != nullptr) {
    pinned().free(static_cast<char*>(data));
  }
}

} // namespace

at::HostAllocator* host_allocator() {
  return &pinned();
}

bool is_pinned(const void* data) {
  return data != nullptr && pinned().has(static_cast<const char*>(data));
}

void land_later(char* target, const char* value, size_t size, const Launch& launch) {
  std::memset(target, 0xFF, size);
  landings().push_back({target, {value, value + size}, launch.stream, launch.tick});
}

void land(const Moment& moment) {
  auto lands = [&](const Landing& one) {
    if (!moment.includes(one.stream, one.tick)) {
      return false;
    }
    std::memcpy(one.begin, one.bytes.data(), one.bytes.size());
    return true;
  };
  auto& all = landings();
  all.erase(std::remove_if(all.begin(), all.end(), lands), all.end());
}

} // namespace simulated
