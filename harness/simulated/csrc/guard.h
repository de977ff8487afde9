// Devices, their streams, events and random numbers, as torch asks for them.
#pragma once

#include "clocks.h"

#include <ATen/core/Generator.h>

namespace simulated {

c10::DeviceIndex device_count();
c10::DeviceIndex current_device();
// Streams are handed out from the first one on again.
void hand_out_anew();
c10::Stream current_stream(c10::DeviceIndex device);
// Have the host wait for a moment, and copies to pinned memory that are over by then land.
void synchronize(const Moment& moment);

// The state of random numbers is 16 bytes, seed and offset, as DTensor's random initialisation needs it.
const at::Generator& default_generator(c10::DeviceIndex device);
at::Generator new_generator(c10::DeviceIndex device);
// A CPU generator for one kernel, which draws at most so many numbers; the next kernel's differs.
at::Generator next_for_cpu(const at::Generator& generator, int64_t numbers);

} // namespace simulated
