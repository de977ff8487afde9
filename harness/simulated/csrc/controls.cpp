// What Python asks of the simulation, as ``torch.ops.simulated``.
#include "guard.h"
#include "kernels.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <sstream>

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

void set_stream_time(int64_t device, double time) {
  std::lock_guard<std::mutex> lock(clocks().mutex);
  clocks().stream(current_stream(static_cast<c10::DeviceIndex>(device))).time = time;
}

void keep_spans(bool keeps) {
  std::lock_guard<std::mutex> lock(clocks().mutex);
  clocks().keep_spans(keeps);
}

// What has been launched since spans are kept: of each its stream, name, begin and end, between tabs.
std::vector<std::string> take_spans() {
  std::lock_guard<std::mutex> lock(clocks().mutex);
  std::vector<std::string> lines;
  for (const auto& span : clocks().take_spans()) {
    std::ostringstream line;
    line << words_of(span.stream) << "\t" << span.name << "\t" << span.begin << "\t" << span.end;
    lines.push_back(line.str());
  }
  return lines;
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
  m.def("set_stream_time(int device, float time) -> ()", &set_stream_time);
  m.def("keep_spans(bool keeps) -> ()", &keep_spans);
  m.def("take_spans() -> str[]", &take_spans);
  m.def("begin() -> ()", &begin);
}

TORCH_LIBRARY_IMPL(_, AutogradPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

} // namespace

} // namespace simulated
