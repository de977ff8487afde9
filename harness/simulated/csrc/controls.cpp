// What Python asks of the simulation, as ``torch.ops.simulated``.
#include "guard.h"
#include "kernels.h"

#include <ATen/ATen.h>
#include <torch/library.h>

namespace simulated {

namespace {

void look_for_races(bool looks) {
  looks_for_races() = looks;
}

// Account work to the current stream of a device: what it reads and writes, and how long it takes.
void charge(int64_t device, std::string name, std::vector<at::Tensor> read, std::vector<at::Tensor> written, double cost) {
  launch(static_cast<c10::DeviceIndex>(device), name, {std::move(read), std::move(written)}, cost);
}

// How far the current stream of a device is, in microseconds.
double stream_time(int64_t device) {
  std::lock_guard<std::mutex> lock(clocks().mutex);
  Moment now = clocks().stream(current_stream(static_cast<c10::DeviceIndex>(device)));
  return std::max(now.time, clocks().host().time);
}

// Have the current stream of a device do nothing until then.
void idle_until(int64_t device, double time) {
  std::lock_guard<std::mutex> lock(clocks().mutex);
  Moment& now = clocks().stream(current_stream(static_cast<c10::DeviceIndex>(device)));
  now.time = std::max(now.time, time);
}

// Time starts anew, and so do the numbers of streams that are handed out.
void begin() {
  std::lock_guard<std::mutex> lock(clocks().mutex);
  clocks().reset();
  hand_out_anew();
}

std::optional<at::Generator> generator(int64_t device) {
  return default_generator(static_cast<c10::DeviceIndex>(device));
}

TORCH_LIBRARY(simulated, m) {
  m.def("device_count() -> int", [] { return static_cast<int64_t>(device_count()); });
  m.def("is_used() -> bool", [] { return allocator()->initialized(); });
  m.def("generator(int device) -> Generator?", &generator);
  m.def("look_for_races(bool looks) -> ()", &look_for_races);
  m.def("take_races() -> str[]", &take_races);
  m.def("on_cpu(Tensor tensor) -> Tensor", &on_cpu);
  m.def("charge(int device, str name, Tensor[] read, Tensor[] written, float cost) -> ()", &charge);
  m.def("stream_time(int device) -> float", &stream_time);
  m.def("idle_until(int device, float time) -> ()", &idle_until);
  m.def("begin() -> ()", &begin);
}

TORCH_LIBRARY_IMPL(_, AutogradPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

} // namespace

} // namespace simulated
