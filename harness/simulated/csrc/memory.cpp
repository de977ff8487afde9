#include "memory.h"

#include "guard.h"

#include <c10/core/impl/alloc_cpu.h>

#include <cstring>

namespace simulated {

namespace {

using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;
using c10::CachingDeviceAllocator::DeviceStats;

constexpr size_t kRounding = 512;
constexpr size_t kSmall = 1 << 20;
// Bytes of a device.
constexpr size_t kCapacity = size_t{16} << 30;
// What new memory holds: NaN in every floating dtype.
constexpr int kPoison = 0xFF;

void change(StatArray& stats, size_t size, int64_t by) {
  for (auto type : {StatType::AGGREGATE, size <= kSmall ? StatType::SMALL_POOL : StatType::LARGE_POOL}) {
    auto& stat = stats.at(static_cast<size_t>(type));
    by > 0 ? stat.increase(by) : stat.decrease(-by);
  }
}

void free_block(void* context);

class Memory : public c10::DeviceAllocator {
 public:
  bool initialized() override {
    return is_used_;
  }

  c10::DataPtr allocate(size_t n) override {
    c10::Device device(kDevice, current_device());
    if (n == 0) {
      return {nullptr, nullptr, &free_block, device};
    }
    std::lock_guard<std::mutex> lock(clocks().mutex);
    is_used_ = true;
    int home = clocks().number(current_stream(device.index()));
    reclaim(device.index());
    Block* block = from_pool(device.index(), home, (n + kRounding - 1) / kRounding * kRounding);
    block->requested = n;
    auto& stats = stats_[device.index()];
    change(stats.allocation, block->size, 1);
    change(stats.active, block->size, 1);
    change(stats.allocated_bytes, block->size, static_cast<int64_t>(block->size));
    change(stats.active_bytes, block->size, static_cast<int64_t>(block->size));
    change(stats.requested_bytes, block->size, static_cast<int64_t>(n));
    std::memset(block->data, kPoison, block->size);
    return {block->data, block, &free_block, device};
  }

  void free(Block* block) {
    std::lock_guard<std::mutex> lock(clocks().mutex);
    auto& stats = stats_[block->device];
    change(stats.allocation, block->size, -1);
    change(stats.allocated_bytes, block->size, -static_cast<int64_t>(block->size));
    change(stats.requested_bytes, block->size, -static_cast<int64_t>(block->requested));
    for (auto& [stream, tick] : block->users) {
      auto& seen = clocks().stream(stream).seen;
      tick = static_cast<size_t>(stream) < seen.size() ? seen[stream] : 0;
    }
    waiting_.push_back(block);
    reclaim(block->device);
  }

  void emptyCache(c10::MempoolId_t /*pool*/) override {
    std::lock_guard<std::mutex> lock(clocks().mutex);
    empty();
  }

  void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override {
    if (pointer.get_deleter() != &free_block || pointer.get_context() == nullptr) {
      return;
    }
    std::lock_guard<std::mutex> lock(clocks().mutex);
    auto* block = static_cast<Block*>(pointer.get_context());
    if (int number = clocks().number(stream); number != block->home) {
      block->users[number] = 0;
    }
  }

  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(clocks().mutex);
    reclaim(device);
    return stats_[device];
  }

  void resetAccumulatedStats(c10::DeviceIndex device) override {
    each_stat(device, [](auto& stat) { stat.reset_accumulated(); });
  }

  void resetPeakStats(c10::DeviceIndex device) override {
    each_stat(device, [](auto& stat) { stat.reset_peak(); });
  }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(clocks().mutex);
    return {kCapacity - reserved(device), kCapacity};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr;
  }

  void copy_data(void* dest, const void* src, std::size_t count) const override {
    default_copy_data(dest, src, count);
  }

 private:
  size_t reserved(c10::DeviceIndex device) {
    return static_cast<size_t>(stats_[device].reserved_bytes[0].current);
  }

  Block* from_pool(c10::DeviceIndex device, int home, size_t size) {
    auto& free = pools_[{home, size}];
    if (!free.empty()) {
      Block* block = free.back();
      free.pop_back();
      return block;
    }
    auto& stats = stats_[device];
    if (reserved(device) + size > kCapacity) {
      stats.num_alloc_retries++;
      empty();
    }
    if (reserved(device) + size > kCapacity) {
      stats.num_ooms++;
      TORCH_CHECK_WITH(OutOfMemoryError, false, "simulated device ", static_cast<int>(device), ": out of memory: ", size,
                       " bytes asked for, ", reserved(device), " of ", kCapacity, " in use");
    }
    stats.num_device_alloc++;
    change(stats.segment, size, 1);
    change(stats.reserved_bytes, size, static_cast<int64_t>(size));
    return new Block{static_cast<char*>(c10::alloc_cpu(size)), size, 0, device, home, {}, {}};
  }

  // Freed blocks return to their pools once their home stream, or the host, has seen what other streams did with them.
  void reclaim(c10::DeviceIndex device) {
    auto is_free = [&](Block* block) {
      if (block->device != device) {
        return false;
      }
      for (auto [stream, tick] : block->users) {
        if (!clocks().stream(block->home).includes(stream, tick) && !clocks().host().includes(stream, tick)) {
          return false;
        }
      }
      block->users.clear();
      auto& stats = stats_[device];
      change(stats.active, block->size, -1);
      change(stats.active_bytes, block->size, -static_cast<int64_t>(block->size));
      pools_[{block->home, block->size}].push_back(block);
      return true;
    };
    waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(), is_free), waiting_.end());
  }

  void empty() {
    for (auto& [key, blocks] : pools_) {
      for (Block* block : blocks) {
        auto& stats = stats_[block->device];
        stats.num_device_free++;
        change(stats.segment, block->size, -1);
        change(stats.reserved_bytes, block->size, -static_cast<int64_t>(block->size));
        c10::free_cpu(block->data);
        delete block;
      }
    }
    pools_.clear();
  }

  template <typename Function>
  void each_stat(c10::DeviceIndex device, Function function) {
    std::lock_guard<std::mutex> lock(clocks().mutex);
    auto& s = stats_[device];
    for (auto* array : {&s.allocation, &s.segment, &s.active, &s.allocated_bytes, &s.reserved_bytes, &s.active_bytes,
                        &s.requested_bytes}) {
      for (auto& stat : *array) {
        function(stat);
      }
    }
  }

  bool is_used_ = false;
  std::map<std::pair<int, size_t>, std::vector<Block*>> pools_; // by home and size
  std::vector<Block*> waiting_;
  std::array<DeviceStats, kMostDevices> stats_;
};

Memory& memory() {
  static auto* made = new Memory();
  return *made;
}

void free_block(void* context) {
  if (context != nullptr) {
    memory().free(static_cast<Block*>(context));
  }
}

} // namespace

c10::DeviceAllocator* allocator() {
  return &memory();
}

Block* block_of(const c10::Storage& storage) {
  const auto& pointer = storage.data_ptr();
  return pointer.get_deleter() == &free_block ? static_cast<Block*>(pointer.get_context()) : nullptr;
}

std::pair<size_t, size_t> bytes_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) {
    return {0, 0};
  }
  int64_t last = tensor.storage_offset();
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  }
  return {tensor.storage_offset() * tensor.itemsize(), (last + 1) * tensor.itemsize()};
}

void note_access(const at::Tensor& tensor, const Launch& launch, bool writes, const std::shared_ptr<Origin>& origin) {
  if (Block* block = block_of(tensor.storage())) {
    auto [begin, end] = bytes_of(tensor);
    note(block->history, {begin, end, launch.stream, launch.tick, writes, origin});
  }
}

} // namespace simulated
