#include "bench/contestant.h"

#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <sys/socket.h>
#include <sys/un.h>

namespace weft::bench {
namespace {

[[noreturn]] void Die(const std::string& message) {
  std::fprintf(stderr, "bench: %s\n", message.c_str());
  std::exit(2);
}

class Connection {
 public:
  Connection() : socket_(socket(AF_UNIX, SOCK_STREAM, 0)) {
    const std::string path = SocketPath();
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::snprintf(address.sun_path, sizeof(address.sun_path), "%s", path.c_str());
    if (connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      Die("cannot connect to " + path + ": " + std::strerror(errno));
    }
  }
  ~Connection() { close(socket_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // False if the suite has closed the connection.
  bool ReadLine(std::string& line) const {
    line.clear();
    for (char letter = 0; read(socket_, &letter, 1) == 1;) {
      if (letter == '\n') return true;
      line += letter;
    }
    return false;
  }

  void WriteLine(const std::string& line) const {
    const std::string text = line + "\n";
    for (size_t sent = 0; sent < text.size();) {
      const ssize_t count = write(socket_, text.data() + sent, text.size() - sent);
      if (count <= 0) Die("the suite has closed the connection");
      sent += static_cast<size_t>(count);
    }
  }

 private:
  int socket_;
};

std::string ToJson(const Reply& reply) {
  std::string json;
  for (const auto& [name, values] : reply) {
    json += (json.empty() ? "{\"" : ", \"") + name + "\": [";
    for (size_t i = 0; i < values.size(); ++i) {
      char number[32];
      std::snprintf(number, sizeof(number), "%s%.9g", i == 0 ? "" : ", ", values[i]);
      json += number;
    }
    json += "]";
  }
  return json + "}";
}

Request Parse(std::istringstream& words) {
  Request request;
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos) Die("'" + word + "' is not <key>=<value>");
    request[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return request;
}

}  // namespace

std::string SocketPath() {
  const char* path = std::getenv("WEFT_BENCH_SOCKET");
  if (path == nullptr) Die("WEFT_BENCH_SOCKET is not set: bench/run.py starts this program");
  return path;
}

void Serve(int rank, const std::map<std::string, Handler>& handlers) {
  const Connection connection;
  connection.WriteLine("{\"rank\": " + std::to_string(rank) + ", \"pid\": " + std::to_string(getpid()) + "}");
  for (std::string line; connection.ReadLine(line);) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    const auto handler = handlers.find(verb);
    if (handler == handlers.end()) Die("unknown request: '" + line + "'");
    connection.WriteLine(ToJson(handler->second(Parse(words))));
  }
}

std::string StringOf(const Request& request, const std::string& key) {
  const auto found = request.find(key);
  if (found == request.end()) Die("the request has no '" + key + "'");
  return found->second;
}

int IntegerOf(const Request& request, const std::string& key) {
  const std::string text = StringOf(request, key);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) Die(key + "=" + text + " is not an integer");
  return value;
}

}  // namespace weft::bench
