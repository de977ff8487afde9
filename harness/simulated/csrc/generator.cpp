#include "guard.h"

#include "clocks.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>

#include <array>
#include <cstring>

namespace simulated {

namespace {

class Random final : public c10::GeneratorImpl {
 public:
  explicit Random(c10::DeviceIndex device)
      : GeneratorImpl(c10::Device(kDevice, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  void set_offset(uint64_t offset) override {
    offset_ = offset;
  }
  uint64_t get_offset() const override {
    return offset_;
  }
  uint64_t current_seed() const override {
    return seed_;
  }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK_VALUE(state.numel() == kBytes && state.dtype() == at::kByte && state.device_type() == c10::kCPU,
                      "set_state: expected a CPU tensor of ", kBytes, " bytes, got ", state.numel(), " of ",
                      state.dtype(), " on ", state.device_type());
    const auto* data = static_cast<const char*>(state.data());
    std::memcpy(&seed_, data, sizeof(seed_));
    std::memcpy(&offset_, data + sizeof(seed_), sizeof(offset_));
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    at::TensorBase state = at::detail::empty_cpu({kBytes}, at::kByte);
    auto* data = static_cast<char*>(state.data_ptr());
    std::memcpy(data, &seed_, sizeof(seed_));
    std::memcpy(data + sizeof(seed_), &offset_, sizeof(offset_));
    return state.getIntrusivePtr();
  }

 private:
  static constexpr int64_t kBytes = 16;

  Random* clone_impl() const override {
    auto* made = new Random(device().index());
    made->seed_ = seed_;
    made->offset_ = offset_;
    return made;
  }

  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

} // namespace

at::Generator new_generator(c10::DeviceIndex device) {
  return at::make_generator<Random>(device);
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static auto* all = [] {
    auto* made = new std::vector<at::Generator>();
    for (int index = 0; index < kMostDevices; ++index) {
      made->push_back(new_generator(static_cast<c10::DeviceIndex>(index)));
    }
    return made;
  }();
  return all->at(device);
}

at::Generator next_for_cpu(const at::Generator& generator, int64_t numbers) {
  auto* random = generator.unsafeGetGeneratorImpl();
  std::lock_guard<std::mutex> lock(random->mutex_);
  uint64_t mixed = random->current_seed() + 0x9E3779B97F4A7C15 * (random->get_offset() + 1);
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9; // SplitMix64 (Steele, Lea, Flood 2014)
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB;
  random->set_offset(random->get_offset() + (numbers + 3) / 4 * 4);
  return at::detail::createCPUGenerator(mixed ^ (mixed >> 31));
}

} // namespace simulated
