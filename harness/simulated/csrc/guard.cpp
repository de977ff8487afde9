#include "guard.h"

#include "memory.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <cstdlib>

namespace simulated {

namespace {

thread_local c10::DeviceIndex device_now = 0;
thread_local std::array<c10::StreamId, kMostDevices> streams_now{};
// How many streams of a priority a device has handed out.
std::array<std::array<std::atomic<int>, 2>, kMostDevices> handed_out{};
// How long the host takes to ask whether something is over, in microseconds: time must go on where it asks in a loop.
constexpr double kAsking = 10;

struct Event {
  Moment moment;
  bool is_recorded = false;
};

c10::DeviceIndex checked(c10::DeviceIndex index) {
  TORCH_CHECK_VALUE(index >= 0 && index < device_count(), "expected a simulated device from 0 to ", device_count() - 1,
                    ", got ", static_cast<int>(index));
  return index;
}

// Whether a moment is over for the host, which is then known to it; asking takes time.
bool is_over(const Moment& moment) {
  std::lock_guard<std::mutex> lock(clocks().mutex);
  Moment& host = clocks().host();
  if (moment.time > host.time) {
    host.time += kAsking;
    return false;
  }
  host.join(moment);
  land(host);
  return true;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return kDevice;
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override {
    return {kDevice, device_now};
  }
  void setDevice(c10::Device device) const override {
    device_now = checked(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    device_now = device.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    return current_stream(device.has_index() ? device.index() : device_now);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, c10::Device(kDevice, device.has_index() ? device.index() : device_now));
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    c10::DeviceIndex index = checked(device.has_index() ? device.index() : device_now);
    int high = priority < 0 ? 1 : 0;
    int place = handed_out[index][high]++ % kPool;
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kDevice, index), 1 + high * kPool + place);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool isHighPriority) const override {
    return getNewStream(device, isHighPriority ? -1 : 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    c10::Stream before = current_stream(stream.device_index());
    streams_now[stream.device_index()] = stream.id();
    return before;
  }
  void destroyEvent(void* event, const c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device, const c10::EventFlag /*flag*/)
      const override {
    TORCH_CHECK_VALUE(device == -1 || device == stream.device_index(), "an event of device ", static_cast<int>(device),
                      " cannot be recorded on a stream of device ", static_cast<int>(stream.device_index()));
    if (*event == nullptr) {
      *event = new Event();
    }
    std::lock_guard<std::mutex> lock(clocks().mutex);
    Moment moment = clocks().stream(stream);
    moment.join(clocks().host());
    *static_cast<Event*>(*event) = {moment, true};
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) {
      std::lock_guard<std::mutex> lock(clocks().mutex);
      clocks().stream(stream).join(static_cast<Event*>(event)->moment);
    }
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || is_over(static_cast<Event*>(event)->moment);
  }
  bool queryStream(const c10::Stream& stream) const override {
    Moment moment;
    {
      std::lock_guard<std::mutex> lock(clocks().mutex);
      moment = clocks().stream(stream);
    }
    return is_over(moment);
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    std::lock_guard<std::mutex> lock(clocks().mutex);
    synchronize(clocks().stream(stream));
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      std::lock_guard<std::mutex> lock(clocks().mutex);
      synchronize(static_cast<Event*>(event)->moment);
    }
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    std::lock_guard<std::mutex> lock(clocks().mutex);
    synchronize(clocks().device(device < 0 ? device_now : device));
  }
  void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& stream) const override {
    allocator()->recordStream(pointer, stream);
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex /*device*/) const override {
    auto *begin = static_cast<Event*>(first), *end = static_cast<Event*>(second);
    TORCH_CHECK_VALUE(begin != nullptr && end != nullptr && begin->is_recorded && end->is_recorded,
                      "elapsed_time: expected two events that were recorded; record both first");
    return (end->moment.time - begin->moment.time) / 1000;
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return device_count();
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return device_count() > 0;
  }
  bool hasPrimaryContext(c10::DeviceIndex /*device*/) const override {
    return true;
  }
  c10::DeviceIndex deviceCount() const override {
    return device_count();
  }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    device_now = checked(device);
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return device_now;
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return std::exchange(device_now, checked(device));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? device_now : exchangeDevice(device);
  }
  bool isPinnedPtr(const void* data) const override {
    return is_pinned(data);
  }
  at::Allocator* getPinnedMemoryAllocator() const override {
    return host_allocator();
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device < 0 ? device_now : checked(device));
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return new_generator(device < 0 ? device_now : checked(device));
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    auto* impl = storage.unsafeGetStorageImpl();
    TORCH_CHECK(impl->resizable(), "expected a storage that can be resized");
    c10::impl::VirtualGuardImpl guard(kDevice);
    c10::Device before = guard.exchangeDevice(storage.device());
    c10::DataPtr made = allocator()->allocate(size);
    guard.setDevice(before);
    if (size > 0 && impl->nbytes() > 0) {
      std::memcpy(made.get(), impl->data(), std::min(size, impl->nbytes()));
    }
    impl->set_data_ptr_noswap(std::move(made));
    impl->set_nbytes(size);
  }
};

const bool is_registered = [] {
  c10::SetAllocator(kDevice, allocator());
  at::setHostAllocator(kDevice, host_allocator());
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

} // namespace

c10::DeviceIndex device_count() {
  static const auto count = [] {
    const char* asked = std::getenv("SIMULATED_DEVICES");
    return static_cast<c10::DeviceIndex>(std::min(asked == nullptr ? 8 : std::max(0, std::atoi(asked)), kMostDevices));
  }();
  return count;
}

void hand_out_anew() {
  for (auto& counts : handed_out) {
    for (auto& count : counts) {
      count = 0;
    }
  }
}

c10::DeviceIndex current_device() {
  return device_now;
}

c10::Stream current_stream(c10::DeviceIndex device) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kDevice, device), streams_now[device]);
}

void synchronize(const Moment& moment) {
  Moment& host = clocks().host();
  host.join(moment);
  land(host);
}

} // namespace simulated
