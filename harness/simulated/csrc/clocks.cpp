#include "clocks.h"

#include <algorithm>
#include <utility>

namespace simulated {

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

Moment& Clocks::stream(c10::Stream stream) {
  return moments_.at(number(stream));
}

Moment& Clocks::host() {
  return host_;
}

Launch Clocks::launch(int stream, const std::string& name, double cost) {
  Moment& now = moments_.at(stream);
  now.join(host());
  if (now.seen.size() <= static_cast<size_t>(stream)) {
    now.seen.resize(stream + 1);
  }
  if (keeps_spans_ && cost > 0) {
    spans_.push_back({streams_.at(stream), name, now.time, now.time + cost});
  }
  now.time += cost;
  return {stream, ++now.seen[stream]};
}

void Clocks::keep_spans(bool keeps) {
  keeps_spans_ = keeps;
}

std::vector<Span> Clocks::take_spans() {
  return std::exchange(spans_, {});
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

// Ticks go on, since memory knows them; time starts anew, and every stream has seen everything.
void Clocks::reset() {
  Moment all;
  for (const auto& moment : moments_) {
    all.join(moment);
  }
  all.time = 0;
  for (auto& moment : moments_) {
    moment = all;
  }
  host_ = {};
}

Clocks& clocks() {
  static auto* made = new Clocks(); // never destroyed: tensors may outlive statics
  return *made;
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
