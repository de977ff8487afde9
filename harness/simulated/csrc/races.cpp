#include "memory.h"

#include <algorithm>
#include <set>
#include <sstream>

namespace simulated {

namespace {

struct Race {
  Access first, second;
};

constexpr size_t kMostRaces = 100;
std::vector<Race>& found() {
  static auto* made = new std::vector<Race>();
  return *made;
}

// The innermost frames come first; those of torch and of the standard library are left to the reader in Python.
std::string frames_of(const Access& access) {
  std::ostringstream lines;
  if (access.origin->where != nullptr) {
    auto symbols = torch::symbolize({access.origin->where.get()});
    for (auto index : symbols.tracebacks.at(0)) {
      const auto& frame = symbols.all_frames.at(index);
      lines << frame.filename << ":" << frame.lineno << ":" << frame.funcname << "\t";
    }
  }
  return lines.str();
}

std::string line_of(const Access& access) {
  std::ostringstream line;
  line << access.origin->name << "\n" << (access.writes ? "writes" : "reads") << "\n";
  line << words_of(clocks().stream_of(access.stream)) << "\n" << frames_of(access) << "\n";
  return line.str();
}

} // namespace

bool& looks_for_races() {
  static bool looks = true;
  return looks;
}

std::shared_ptr<Origin> Origin::here(std::string name) {
  auto made = std::make_shared<Origin>(Origin{std::move(name), nullptr});
  if (looks_for_races()) {
    made->where = torch::CapturedTraceback::gather(/*python=*/true, /*script=*/false, /*cpp=*/false);
  }
  return made;
}

void note(History& history, Access access) {
  if (!looks_for_races() || access.begin == access.end) {
    return;
  }
  const Moment& now = clocks().stream(access.stream);
  auto is_over = [&](const Access& before) {
    if (before.begin >= access.end || access.begin >= before.end) {
      return false;
    }
    bool is_seen = before.stream == access.stream || now.includes(before.stream, before.tick);
    if (!is_seen && (before.writes || access.writes) && found().size() < kMostRaces) {
      found().push_back({before, access});
    }
    bool is_within = access.begin <= before.begin && before.end <= access.end;
    // What comes later and has seen this has seen that, too.
    return is_seen && is_within && (access.writes || (!before.writes && before.stream == access.stream));
  };
  history.erase(std::remove_if(history.begin(), history.end(), is_over), history.end());
  history.push_back(std::move(access));
}

std::vector<std::string> take_races() {
  std::vector<Race> taken;
  {
    std::lock_guard<std::mutex> lock(clocks().mutex);
    taken.swap(found());
  }
  std::set<std::string> known;
  std::vector<std::string> lines;
  for (const auto& race : taken) {
    std::string line = line_of(race.first) + line_of(race.second);
    if (known.insert(line).second) {
      lines.push_back(line);
    }
  }
  return lines;
}

} // namespace simulated
