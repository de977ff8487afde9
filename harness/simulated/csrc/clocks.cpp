#include "clocks.h"

#include <algorithm>

namespace simulated {

namespace {
thread_local int host_number = 0;
}

void Moment::join(const Moment& other) {
  if (seen.size() < other.seen.size()) {
    seen.resize(other.seen.size());
  }
  for (size_t i = 0; i < other.seen.size(); ++i) {
    seen[i] = std::max(seen[i], other.seen[i]);
  }
  time = std::max(time, other.time);
}

bool Moment::includes(int stream, uint32_t tick) const {
  return static_cast<size_t>(stream) < seen.size() && seen[stream] >= tick;
}

int Clocks::number(c10::Stream stream) {
  std::pair<int, int> key(stream.device_index(), static_cast<int>(stream.id()));
  auto found = numbers_.find(key);
  if (found != numbers_.end()) {
    return found->second;
  }
  int number = static_cast<int>(streams_.size());
  numbers_[key] = number;
  streams_.push_back(stream);
  moments_.emplace_back();
  return number;
}

c10::Stream Clocks::stream_of(int number) const {
  return streams_.at(number);
}

Moment& Clocks::stream(int number) {
  return moments_.at(number);
}

Moment& Clocks::host() {
  return hosts_[host_number];
}

Launch Clocks::launch(int stream, double cost, const std::string& name) {
  Moment& now = moments_.at(stream);
  now.join(host());
  if (now.seen.size() <= static_cast<size_t>(stream)) {
    now.seen.resize(stream + 1);
  }
  Launch made{stream, ++now.seen[stream], now.time, now.time + cost};
  now.time = made.end;
  if (keeps_spans && cost > 0) {
    spans.push_back({stream, name, made.begin, made.end});
  }
  return made;
}

Moment Clocks::device(c10::DeviceIndex index) {
  Moment all;
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i].device_index() == index) {
      all.join(moments_[i]);
    }
  }
  return all;
}

// Ticks go on, since memory knows them; time starts anew, and everybody has seen everything.
void Clocks::reset() {
  Moment all;
  for (auto& moment : moments_) {
    all.join(moment);
  }
  all.time = 0;
  for (auto& moment : moments_) {
    moment = all;
  }
  hosts_.clear();
  spans.clear();
}

Clocks& clocks() {
  static auto* made = new Clocks(); // never destroyed: tensors may outlive statics
  return *made;
}

void use_host(int number) {
  host_number = number;
}

std::string words_of(c10::Stream stream) {
  std::string number = std::to_string(stream.id() % kGroups);
  std::string words = stream.id() == 0 ? "the default stream" : "stream " + number;
  if (stream.id() >= kGroups) {
    words = "the stream of process group " + number;
  }
  return words + " of device " + std::to_string(stream.device_index());
}

} // namespace simulated
