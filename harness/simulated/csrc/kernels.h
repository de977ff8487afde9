// Kernels: those of the CPU, on the same memory, accounted to a stream.
#pragma once

#include "memory.h"

#include <ATen/core/stack.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace simulated {

// A CPU tensor over the memory of a device's.
at::Tensor on_cpu(const at::Tensor& tensor);
// The tensors of a launch.
struct Touched {
  std::vector<at::Tensor> read, written;
};
// Have the current stream of a device do something: what it touches decides how long it takes, unless that is said.
Launch launch(c10::DeviceIndex device, const std::string& name, const Touched& touched, std::optional<double> cost = {});
// Run an operator's CPU kernel on device tensors.
void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack);

} // namespace simulated
