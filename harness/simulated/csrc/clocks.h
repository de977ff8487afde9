// Virtual time: what each stream and the host have done and seen, and when.
//
// Kernels run at once, in the thread that launches them; streams only keep account. A launch sees what its stream and
// its host have seen, and lasts as long as its cost. To wait for an event is to see what was seen when it was recorded.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace simulated {

constexpr c10::DeviceType kDevice = c10::DeviceType::PrivateUse1;
// Of each device: the default stream, and 32 of low and 32 of high priority that are handed out in turn, as CUDA does.
constexpr int kPool = 32;
// Streams of process groups have numbers from here on.
constexpr int kGroups = 100;
constexpr int kMostDevices = 16;

// A point of virtual time.
struct Moment {
  std::vector<uint32_t> seen; // by stream number: how many of its launches are over by then
  double time = 0;            // in microseconds

  void join(const Moment& other);
  bool includes(int stream, uint32_t tick) const;
};

// A piece of work of a stream: the tick-th.
struct Launch {
  int stream;
  uint32_t tick;
};

// The same with its name and when it ran, in microseconds, for timelines.
struct Span {
  c10::Stream stream;
  std::string name;
  double begin, end;
};

class Clocks {
 public:
  // Guards all state of the simulated devices. No Python code runs while it is held.
  std::mutex mutex;

  // The number of a stream: dense, in the order of first use.
  int number(c10::Stream stream);
  c10::Stream stream_of(int number) const;
  Moment& stream(int number);
  Moment& stream(c10::Stream stream);
  // All threads share it.
  Moment& host();
  Launch launch(int stream, const std::string& name, double cost);
  // Launches from now on are kept as spans, or no more.
  void keep_spans(bool keeps);
  std::vector<Span> take_spans();
  // All streams of a device, joined.
  Moment device(c10::DeviceIndex index);
  void reset();

 private:
  std::map<std::pair<int, int>, int> numbers_;
  std::vector<c10::Stream> streams_;
  std::deque<Moment> moments_; // references to them last
  Moment host_;
  bool keeps_spans_ = false;
  std::vector<Span> spans_;
};

Clocks& clocks();
// In words, for messages: "stream 3 of simulated:0".
std::string words_of(c10::Stream stream);

} // namespace simulated
